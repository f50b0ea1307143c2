"""Tokens that somebody else has made: a file of nothing but ids, as nanoGPT writes them.

Covers `RawTokens`. The file stays where it is; what is kept of it, and how it is opened again, is `tokens.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.tokens import Progress, TokenFile, refer

__all__ = ["SUFFIX", "RawTokens"]

SUFFIX = ".bin"
_DTYPE = np.dtype(np.uint16)
#: ids that are looked at in one go
_PIECE = 1 << 22


class RawTokens:
    """The ids of a .bin, uint16. ValueError, naming the path, if it is missing, no regular file, or no whole number of ids."""

    is_text = False
    note = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.nbytes = TokenFile(self.path, _DTYPE).stat.st_size

    def pieces(self) -> Iterator[bytes]:
        """ValueError at the first: only who made the tokens knows their text."""
        raise ValueError(f"data {self.path} holds tokens, and no text to train a tokenizer on; name the tokenizer that it was "
                         "made with")
        yield b""  # of a generator, so that nothing is raised for a tokenizer that reads no text

    def tokens(
        self, tokenizer: Tokenizer, folder: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> TokenFile:
        """The file itself, all of whose ids were found to be of this tokenizer; `folder` gets a record of where it is.

        `progress` is called with bytes done and bytes in all. ValueError for an id that the tokenizer has not, or for a
        tokenizer with more ids than uint16 can say.
        """
        if tokenizer.vocab_size > np.iinfo(_DTYPE).max + 1:
            raise ValueError(f"data {self.path} has ids of {_DTYPE.name}, and the tokenizer has {tokenizer.vocab_size:,}, more "
                             "than these can say; name the tokenizer that it was made with, or give its text")
        found = TokenFile(self.path, _DTYPE)
        _check_ids(found, tokenizer.vocab_size, progress)
        refer(folder, found, tokenizer)
        return found


def _check_ids(found: TokenFile, vocab_size: int, progress: Progress | None) -> None:
    for start in range(0, len(found), _PIECE):
        ids = found[start : start + _PIECE]
        if ids.max() >= vocab_size:
            place = int(np.argmax(ids >= vocab_size))
            raise ValueError(f"data {found.path} has the token {ids[place]} at byte {(start + place) * _DTYPE.itemsize:,}, and "
                             f"the tokenizer has {vocab_size:,}; name the tokenizer that it was made with, or make it anew")
        if progress is not None:
            progress((start + ids.size) * _DTYPE.itemsize, found.stat.st_size)
