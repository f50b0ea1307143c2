"""The kind of data that a path names. This is the only module that decides how a path is read.

Covers `open_source`. Text is text.py, ready-made tokens are raw_tokens.py, and the file of tokens is tokens.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from asynctile.layers.raw_tokens import SUFFIX, RawTokens
from asynctile.layers.text import TEXT_FIELD, TextSource

__all__ = ["TEXT_FIELD", "DataSource", "open_source"]

#: The data of a run, for training or for validation.
DataSource: TypeAlias = TextSource | RawTokens


def open_source(path: str | os.PathLike[str] | None, text_field: str = TEXT_FIELD) -> DataSource:
    """Return the data at `path`: tokens for a .bin, text for anything else, Python's standard library for None.

    Files are only looked at, never read whole. ValueError, naming the path, if it is missing, unreadable or has nothing to
    train on.
    """
    if path is not None and Path(path).suffix.lower() == SUFFIX and not Path(path).is_dir():
        return RawTokens(path)
    return TextSource(path, text_field)
