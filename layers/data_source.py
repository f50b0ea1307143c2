"""What a run's data is: the one place that looks at what was named and says how it is read.

Covers `open_source` and what every source can do. Text is `text.py`, tokens that are made already `raw_tokens.py`; the
file of tokens is `tokens.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from asynctile.layers import raw_tokens
from asynctile.layers.text import TEXT_FIELD, TextSource
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.tokens import Progress, TokenFile

__all__ = ["TEXT_FIELD", "DataSource", "open_source"]


class DataSource(Protocol):
    """What was named as data, for training or for validation. `nbytes`: of its files."""

    path: Path
    nbytes: int
    #: False: it is tokens already, of the tokenizer that made them
    is_text: bool

    @property
    def note(self) -> str | None:
        """What was left out of it, in a sentence for who started the run; None: nothing was."""

    def pieces(self) -> Iterator[bytes]:
        """Its text in order, to train a tokenizer on. ValueError if it has none."""

    def tokens(
        self, tokenizer: Tokenizer, folder: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> TokenFile:
        """Its tokens. `folder` keeps what `open_tokens` needs to find them again.

        May take long; `progress` is called with bytes done and bytes in all. ValueError if there are none, or they cannot
        be of this tokenizer; OSError if the disk fails.
        """


def open_source(path: str | os.PathLike[str] | None, text_field: str = TEXT_FIELD) -> DataSource:
    """The data that `path` names: of a .bin tokens, of anything else text; None: the source of Python's standard library.

    Looks at files, and reads none whole.

    Raises ValueError, naming the path, if it is missing, unreadable or holds nothing to train on.
    """
    if path is not None and Path(path).suffix.lower() == raw_tokens.SUFFIX and not Path(path).is_dir():
        return raw_tokens.RawTokens(path)
    return TextSource(path, text_field)
