"""Tokens that another program made: a file of nothing but ids, as nanoGPT writes them.

Covers `RawTokens`. The file stays where it is. tokens.py remembers it and opens it again.
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
#: how many ids are checked at once
PIECE = 1 << 22


class RawTokens:
    """The ids of a .bin, uint16.

    ValueError, naming the path, if it is missing, not a regular file, or not a whole number of ids.
    """

    is_text = False
    note = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.nbytes = TokenFile(self.path, _DTYPE).stat.st_size

    def pieces(self) -> Iterator[bytes]:
        """Raise ValueError at the first piece: the text of these tokens is unknown."""
        raise ValueError(f"data {self.path} contains tokens, not text to train a tokenizer on; name the tokenizer that made "
                         "these tokens")
        yield b""  # makes this a generator: nothing is raised for a tokenizer that reads no text

    def tokens(
        self, tokenizer: Tokenizer, folder: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> TokenFile:
        """Return the file itself, once all its ids have been found in the tokenizer. `folder` gets a record of its path.

        `progress` is called with bytes done and bytes in all. ValueError for an id that the tokenizer does not have, or for a
        tokenizer with more ids than uint16 can hold.
        """
        if tokenizer.vocab_size > np.iinfo(_DTYPE).max + 1:
            raise ValueError(f"data {self.path} has ids of {_DTYPE.name}, which cannot hold the {tokenizer.vocab_size:,} ids "
                             "of the tokenizer; name the tokenizer that made the data, or give its text")
        found = TokenFile(self.path, _DTYPE)
        _check_ids(found, tokenizer.vocab_size, progress)
        refer(folder, found, tokenizer)
        return found


def _check_ids(found: TokenFile, vocab_size: int, progress: Progress | None) -> None:
    for start in range(0, len(found), PIECE):
        ids = found[start : start + PIECE]
        if ids.max() >= vocab_size:
            place = int(np.argmax(ids >= vocab_size))
            raise ValueError(f"data {found.path} has the token {ids[place]} at byte {(start + place) * _DTYPE.itemsize:,}, but "
                             f"the tokenizer has only {vocab_size:,} tokens; name the tokenizer that made the data, or remake "
                             "the data")
        if progress is not None:
            progress((start + ids.size) * _DTYPE.itemsize, found.stat.st_size)
