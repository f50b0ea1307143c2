"""Batches of tokens and targets for training and validation.

Covers `Batches` and `ValidationBatches`, and `Resumable`, which has what batches of all kinds share. example_batches.py makes
batches of chats. data_source.py finds out what kind of data a path names, text.py reads text,
tokenizer.py makes tokens, tokens.py holds the file of tokens and its two parts. entropy.py computes how well a model that sees
only the last token could do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.rows import MOST_TOKENS
from asynctile.layers.tokens import Tokens
from asynctile.ops.cross_entropy import IGNORED
from asynctile.storage.input import shown

_Pair: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
#: (tokens, targets), or (tokens, targets, positions) of rows of several examples.
Batch: TypeAlias = _Pair | tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Resumable:
    """An endless iterator of batches, arrays of int64 (B, T). Batch n is a pure function of the data, `seed` and n.

    `state_dict` holds the position, and a loader of that state continues exactly there. ValueError if a number is out of range.
    """

    def __init__(self, batch_size: int, seq_len: int, seed: int) -> None:
        check_sizes(batch_size, seq_len)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
            raise ValueError(f"seed {shown(seed)} cannot be used; expected an int from 0 to 2**64 - 1")
        self.batch_size, self.seq_len, self.seed = int(batch_size), int(seq_len), int(seed)
        #: the number of the next batch
        self.position = 0

    def batch(self, position: int) -> Batch:
        """Return batch number `position`, without moving to it."""
        raise NotImplementedError

    def _of_data(self) -> dict[str, int]:
        """Return what the batches depend on beside the numbers, for `state_dict`."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch = self.batch(self.position)
        self.position += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """Return the position and everything that it depends on, for JSON."""
        return {"position": self.position, **self._identity()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where `state` was taken. ValueError if it belongs to other tokens, another seed, B or T."""
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ValueError(
                    f"saved batches have {key} {shown(state.get(key))}, expected {value}; resume with the same "
                    "data, seed, batch size and sequence length"
                )
        position = state.get("position")
        if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position < 1 << 63:
            raise ValueError(f"saved batches have position {shown(position)}; expected an int from 0 to 2**63 - 1")
        self.position = position

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "batch_size": self.batch_size, "seq_len": self.seq_len, **self._of_data()}


class Batches(Resumable):
    """Batches from random windows of tokens. Targets are the next tokens.

    The windows are drawn by Philox, a counter-based generator. ValueError if there are fewer than T + 1 tokens, or if a number
    is out of range.
    """

    def __init__(self, tokens: Tokens, batch_size: int, seq_len: int, seed: int) -> None:
        super().__init__(batch_size, seq_len, seed)
        _check_length(tokens, seq_len, "training")
        self.tokens = tokens

    def batch(self, position: int) -> Batch:
        """Return batch number `position`, without moving to it."""
        # The position is the counter's second word, so each batch has 2**64 draws of its own. Raw words are used instead of
        # `integers`, because NumPy may change the latter between versions.
        draws = np.random.Philox(key=self.seed, counter=[0, position, 0, 0]).random_raw(self.batch_size)
        starts = np.asarray(draws) % np.uint64(len(self.tokens) - self.seq_len)
        return _windows(self.tokens, starts.tolist(), self.seq_len)

    def _of_data(self) -> dict[str, int]:
        return {"tokens": len(self.tokens)}


class ValidationBatches:
    """Batches of (tokens, targets), int64 (B, T) each, from fixed windows that do not overlap; iterable any number of times.

    limit: the most tokens, rounded up to whole windows; None: all. The windows are spread evenly over the tokens, so that a few
    windows represent the whole. The unfilled rows of the last batch have targets of -100 (ignored), so every batch has the same
    shape. ValueError if there are fewer than T + 1 tokens, or if a number is out of range.
    """

    def __init__(self, tokens: Tokens, batch_size: int, seq_len: int, limit: int | None = None) -> None:
        check_sizes(batch_size, seq_len)
        _check_length(tokens, seq_len, "validation")
        check_limit(limit)
        self._tokens, self._batch_size, self._seq_len = tokens, batch_size, seq_len
        #: how many windows exist, and how many are used
        self._there = (len(tokens) - 1) // seq_len
        self._taken = self._there if limit is None else min(math.ceil(limit / seq_len), self._there)

    @property
    def tokens(self) -> int:
        """Number of targets that are scored, without the padding of the last batch."""
        return self._taken * self._seq_len

    def __len__(self) -> int:
        return math.ceil(self._taken / self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, self._taken, self._batch_size):
            inputs, targets = self._part(first, min(first + self._batch_size, self._taken))
            missing = ((0, self._batch_size - len(inputs)), (0, 0))
            yield np.pad(inputs, missing), np.pad(targets, missing, constant_values=IGNORED)

    def rows(self) -> Iterator[NDArray[np.int64]]:
        """Yield the targets of each window, (T,), in order."""
        for n in range(self._taken):
            yield self._part(n, n + 1)[1][0]

    def _part(self, first: int, end: int) -> _Pair:
        starts = [n * self._there // self._taken * self._seq_len for n in range(first, end)]
        return _windows(self._tokens, starts, self._seq_len)


def _windows(tokens: Tokens, starts: list[int], seq_len: int) -> _Pair:
    rows = np.empty((len(starts), seq_len + 1), np.int64)  # (B, T + 1)
    for row, start in zip(rows, starts, strict=True):
        row[:] = tokens[start : start + seq_len + 1]
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def check_sizes(batch_size: int, seq_len: int) -> None:
    """Raise ValueError for B or T below 1, or for more tokens than a step can have."""
    for name, value in (("batch_size", batch_size), ("seq_len", seq_len)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} {shown(value)} cannot be used; expected an int of 1 or more")
    if batch_size * seq_len > MOST_TOKENS:
        raise ValueError(
            f"a batch of {batch_size:,} sequences of {seq_len:,} tokens is {batch_size * seq_len:,} tokens; expected at most "
            f"{MOST_TOKENS:,}; choose a smaller batch or shorter sequences"
        )


def check_limit(limit: int | None) -> None:
    """Raise ValueError for a limit of validation tokens below 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit {shown(limit)} of validation tokens is too small; expected 1 or more, or None for all")


def _check_length(tokens: Tokens, seq_len: int, part: str) -> None:
    if len(tokens) <= seq_len:
        raise ValueError(
            f"the {part} part of the data has {len(tokens)} tokens, fewer than one sequence needs: expected at least "
            f"seq_len + 1 = {seq_len + 1}; give more text or a smaller seq_len"
        )
