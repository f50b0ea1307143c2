"""The kind of data that a path names. This is the only module that decides how a path is read.

Covers `open_source` and the interface of every source. Text is text.py, ready-made tokens are raw_tokens.py, and the file of
tokens is tokens.py.
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
    """The data of a run, for training or for validation. `nbytes`: the size of its files."""

    path: Path
    nbytes: int
    #: False if the data is tokens already, which fit only the tokenizer that made them
    is_text: bool

    @property
    def note(self) -> str | None:
        """A sentence for the user about files that were left out; None if there were none."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the text of the source in order, to train a tokenizer on. ValueError if it has none."""

    def tokens(
        self, tokenizer: Tokenizer, folder: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> TokenFile:
        """Return the tokens of the source. `folder` keeps everything that `open_tokens` needs to find them again."""


def open_source(path: str | os.PathLike[str] | None, text_field: str = TEXT_FIELD) -> DataSource:
    """Return the data at `path`: tokens for a .bin, text for anything else, Python's standard library for None.

    Files are only looked at, never read whole. ValueError, naming the path, if it is missing, unreadable or has nothing to
    train on.
    """
    if path is not None and Path(path).suffix.lower() == raw_tokens.SUFFIX and not Path(path).is_dir():
        return raw_tokens.RawTokens(path)
    return TextSource(path, text_field)
