"""A schedule as arrays: its entries in program order, what each waits for, and what it calls or copies.

Covers the arrays and their checks. How the words of a call are laid out is layout.py's, what a run of them changes is
state.py's, and who makes a schedule is asynctile/repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from asynctile.play.native import REALS, WIDTHS

#: Kinds of entries. OPERATION calls a kernel by its address. UPLOAD and DOWNLOAD copy over the link of their direction, COPY
#: within one memory: their words are target, source, nbytes. TRANSFER is done by the host, which is told when it is ready.
OPERATION, UPLOAD, DOWNLOAD, COPY, TRANSFER = range(5)

#: Words of a copy.
_OF_A_COPY = 3
_TYPES = {
    "kinds": np.int8, "needs": np.int32, "successors_at": np.int64, "successors": np.int32, "travels": np.int8,
    "stretches": np.int32, "reports": np.int8, "address": np.int64, "words": np.int64, "words_at": np.int64,
    "counts": np.int32, "reals": np.float64,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tables:
    """n entries and m edges between them, each C-contiguous. ValueError for what no player could play.

    kinds (n,) int8: OPERATION and so on. needs (n,) int32: how many entries an entry waits for. successors_at (n + 1,) int64
    and successors (m,) int32: who waits for entry i, `successors[successors_at[i]:successors_at[i + 1]]`, all later than i.
    travels (m,) int8: 1 if an error travels along that edge, since the successor reads what was written; 0 if it only comes
    after. stretches (n,) int32: nondecreasing from 0; an entry begins once its stretch is released. reports (n,) int8: 1 if
    Python is to know when it is over. address (n,) int64: the kernel of an OPERATION. words (w,) int64, words_at (n,) int64
    and counts (n,) int32: its arguments, or those of a copy, from words_at[i] on. Words 0 and 1 of an OPERATION belong to the
    worker, and `room(counts[i])` words must be there, for so many are read. reals (n, 4) float64. what: an object an entry,
    for messages. keep: whatever must live while these addresses are used.
    """

    kinds: np.ndarray
    needs: np.ndarray
    successors_at: np.ndarray
    successors: np.ndarray
    travels: np.ndarray
    stretches: np.ndarray
    reports: np.ndarray
    address: np.ndarray
    words: np.ndarray
    words_at: np.ndarray
    counts: np.ndarray
    reals: np.ndarray
    what: Sequence[object]
    keep: Any = None

    def __post_init__(self) -> None:
        for name, dtype in _TYPES.items():
            array = getattr(self, name)
            if array.dtype != dtype or not array.flags.c_contiguous:
                raise ValueError(f"{name} of a schedule is {array.dtype}, expected C-contiguous {np.dtype(dtype)}; convert it")
        self._check_shapes()
        self._check_edges()
        self._check_words()

    @property
    def count(self) -> int:
        """Entries."""
        return self.kinds.size

    @property
    def stretch_count(self) -> int:
        """Up to the last that has entries."""
        return len(self.stretch_at) - 1

    @cached_property
    def stretch_at(self) -> np.ndarray:
        """(stretches + 1,) int64: where each stretch begins; the last is `count`."""
        last = int(self.stretches[-1]) if self.count else -1
        return np.searchsorted(self.stretches, np.arange(last + 2)).astype(np.int64)

    def bound(self, words: np.ndarray, keep: Any) -> Tables:
        """The same entries with other words, of which there are as many; nothing else is copied or checked again.

        keep: what must live while the addresses in these words are used.
        """
        if words.dtype != np.int64 or words.shape != self.words.shape or not words.flags.c_contiguous:
            raise ValueError(f"a schedule of {self.words.size} words was given {words.shape} {words.dtype}; give as many int64")
        other = object.__new__(Tables)
        other.__dict__.update(self.__dict__, words=words, keep=keep)
        return other

    def _check_shapes(self) -> None:
        n, m = self.count, self.successors.size
        per_entry = ("kinds", "needs", "stretches", "reports", "address", "words_at", "counts")
        expected: dict[str, tuple[int, ...]] = dict.fromkeys(per_entry, (n,))
        expected |= {"reals": (n, REALS), "words": (self.words.size,)}
        expected |= {"successors_at": (n + 1,), "successors": (m,), "travels": (m,)}
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} of a schedule is {getattr(self, name).shape}, expected {shape}")
        if len(self.what) != n:
            raise ValueError(f"a schedule of {n} entries has {len(self.what)} names of them; give one each")

    def _check_edges(self) -> None:
        n, m, at = self.count, self.successors.size, self.successors_at
        if at[0] != 0 or at[-1] != m or (np.diff(at) < 0).any():
            raise ValueError(f"successors_at of a schedule does not run from 0 to its {m} edges")
        before = np.repeat(np.arange(n), np.diff(at))
        if m and ((self.successors <= before).any() or self.successors.max() >= n):
            raise ValueError("an entry of a schedule waits for itself, a later or a missing one; edges lead forward")
        if (np.bincount(self.successors, minlength=n) != self.needs).any():
            raise ValueError("needs of a schedule are not the edges that lead to each entry; count them from successors")
        if n and (self.stretches[0] < 0 or (np.diff(self.stretches) < 0).any()):
            raise ValueError("stretches of a schedule fall; order its entries by them")
        if n and (self.kinds.min() < OPERATION or self.kinds.max() > TRANSFER):
            raise ValueError(f"kinds of a schedule are {self.kinds.min()} to {self.kinds.max()}, expected 0 to {TRANSFER}")

    def _check_words(self) -> None:
        calls = self.kinds == OPERATION
        if (self.address[calls] == 0).any():
            raise ValueError("an operation of a schedule has no address; give it that of its kernel (layout.py)")
        if calls.any() and not 2 <= self.counts[calls].min() <= self.counts[calls].max() <= WIDTHS[-1]:
            raise ValueError(f"an operation of a schedule has fewer than 2 or more than {WIDTHS[-1]} words")
        taken = np.zeros(self.count, np.int64)
        taken[calls] = np.asarray(WIDTHS)[np.searchsorted(WIDTHS, self.counts[calls])]
        taken[(self.kinds >= UPLOAD) & (self.kinds <= COPY)] = _OF_A_COPY
        if self.count and (self.words_at.min() < 0 or (self.words_at + taken).max() > self.words.size):
            raise ValueError(
                f"the words of a schedule end at {self.words.size}, those of an entry behind that; give the last its `room`"
            )


def room(count: int) -> int:
    """How many words, from its first on, must be readable for an operation of `count` words."""
    return next(width for width in WIDTHS if count <= width)
