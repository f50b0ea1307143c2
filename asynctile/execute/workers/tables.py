"""A schedule as arrays: its entries in program order, what each waits for, and what it calls or copies.

Covers the arrays and their checks. layout.py lays out the words of a call, state.py has the arrays that a run changes,
and asynctile/execute makes the tables of a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from asynctile.execute.workers.native import REALS, WIDTHS

#: Kinds of entries. OPERATION calls a kernel by its address. UPLOAD and DOWNLOAD copy over their direction of the link to RAM,
#: PASS over the link from another device, COPY within one memory; their words are target, source, nbytes. The host carries out
#: a TRANSFER, and is told when it is ready.
OPERATION, UPLOAD, DOWNLOAD, PASS, COPY, TRANSFER = range(6)

#: The device of work that a worker of any device may run: operations of the host.
ANY_DEVICE = -1

#: Number of words of a copy.
_OF_A_COPY = 3
_TYPES = {
    "kinds": np.int8, "devices": np.int8, "needs": np.int32, "successors_at": np.int64, "successors": np.int32,
    "travels": np.int8, "stretches": np.int32, "reports": np.int8, "address": np.int64, "words": np.int64,
    "words_at": np.int64, "counts": np.int32, "reals": np.float64,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tables:
    """The arrays of n entries and m edges between them, each C-contiguous. ValueError for tables that no player could play.

    kinds (n,) int8: OPERATION and so on.
    devices (n,) int8: the device whose workers run the entry and over whose link a copy goes, from 0; ANY_DEVICE if any may.
        Ignored for a TRANSFER.
    needs (n,) int32: number of entries that an entry waits for.
    successors_at (n + 1,) int64, successors (m,) int32: the entries that wait for entry i are
        `successors[successors_at[i]:successors_at[i + 1]]`, all later than i.
    travels (m,) int8: 1 if an error travels along the edge because the successor reads written bytes, 0 if it only
        comes after.
    stretches (n,) int32: the number of the stretch (Schedule.stretches) of each entry, nondecreasing from 0; an entry may
        begin once Python has released its stretch.
    reports (n,) int8: 1 if Python is to know when the entry is over.
    address (n,) int64: the kernel of an OPERATION.
    words (w,) int64, words_at (n,) int64, counts (n,) int32: the arguments of a call or copy, counts[i] words from
        words_at[i] on. Words 0 and 1 of an OPERATION belong to the worker. `room(counts[i])` words must exist, because
        a call reads so many.
    reals (n, 4) float64: float arguments.
    what: an object for each entry, for messages.
    keep: everything that must live while these addresses are used.
    """

    kinds: np.ndarray
    devices: np.ndarray
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
        """Number of entries."""
        return self.kinds.size

    @property
    def stretch_count(self) -> int:
        """Number of stretches, up to the last that has entries."""
        return len(self.stretch_at) - 1

    @property
    def device_count(self) -> int:
        """Number of devices, up to the last that an entry names."""
        return int(self.devices.max(initial=0)) + 1

    @cached_property
    def stretch_at(self) -> np.ndarray:
        """First entry of each stretch, (stretches + 1,) int64; the last item is `count`."""
        last = int(self.stretches[-1]) if self.count else -1
        return np.searchsorted(self.stretches, np.arange(last + 2)).astype(np.int64)

    def bound(self, words: np.ndarray, keep: Any) -> Tables:
        """Return the same entries with other words, of the same number; nothing else is copied or checked again.

        keep: everything that must live while the addresses in these words are used.
        """
        if words.dtype != np.int64 or words.shape != self.words.shape or not words.flags.c_contiguous:
            raise ValueError(f"a schedule of {self.words.size} words was given {words.shape} {words.dtype}; "
                             "give a C-contiguous int64 array of as many words")
        other = object.__new__(Tables)
        other.__dict__.update(self.__dict__, words=words, keep=keep)
        return other

    def _check_shapes(self) -> None:
        n, m = self.count, self.successors.size
        per_entry = ("kinds", "devices", "needs", "stretches", "reports", "address", "words_at", "counts")
        expected: dict[str, tuple[int, ...]] = dict.fromkeys(per_entry, (n,))
        expected |= {"reals": (n, REALS), "words": (self.words.size,)}
        expected |= {"successors_at": (n + 1,), "successors": (m,), "travels": (m,)}
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} of a schedule is {getattr(self, name).shape}, expected {shape}; "
                                 "all arrays must describe the same entries")
        if len(self.what) != n:
            raise ValueError(f"a schedule of {n} entries has {len(self.what)} names in `what`; give one for each entry")

    def _check_edges(self) -> None:
        n, m, at = self.count, self.successors.size, self.successors_at
        if at[0] != 0 or at[-1] != m or (np.diff(at) < 0).any():
            raise ValueError(f"successors_at of a schedule must rise from 0 to its {m} edges")
        before = np.repeat(np.arange(n), np.diff(at))
        if m and ((self.successors <= before).any() or self.successors.max() >= n):
            raise ValueError("an edge of a schedule leads back, to its own entry or to no entry; edges must lead forward")
        if (np.bincount(self.successors, minlength=n) != self.needs).any():
            raise ValueError("needs of a schedule do not match the edges that lead to each entry; count them from successors")
        if n and (self.stretches[0] < 0 or (np.diff(self.stretches) < 0).any()):
            raise ValueError("stretches of a schedule are below 0 or fall; order its entries by stretch")
        if n and (self.kinds.min() < OPERATION or self.kinds.max() > TRANSFER):
            raise ValueError(f"kinds of a schedule are {self.kinds.min()} to {self.kinds.max()}, expected 0 to {TRANSFER}")
        least = np.where((self.kinds >= UPLOAD) & (self.kinds <= PASS), 0, ANY_DEVICE)
        if (self.devices < least).any():
            raise ValueError("devices of a schedule are below ANY_DEVICE, or a copy over a link has none; count devices from 0")

    def _check_words(self) -> None:
        calls = self.kinds == OPERATION
        if (self.address[calls] == 0).any():
            raise ValueError("an operation of a schedule has no address; set it to the address of its kernel (layout.py)")
        if calls.any() and not 2 <= self.counts[calls].min() <= self.counts[calls].max() <= WIDTHS[-1]:
            raise ValueError(f"an operation of a schedule has fewer than 2 or more than {WIDTHS[-1]} words")
        taken = np.zeros(self.count, np.int64)
        taken[calls] = np.asarray(WIDTHS)[np.searchsorted(WIDTHS, self.counts[calls])]
        taken[(self.kinds >= UPLOAD) & (self.kinds <= COPY)] = _OF_A_COPY
        if self.count and (self.words_at.min() < 0 or (self.words_at + taken).max() > self.words.size):
            raise ValueError(
                f"an entry of a schedule lies outside its {self.words.size} words; give the last entry its `room`"
            )


def room(count: int) -> int:
    """Return how many words must be readable from the first word of an operation with `count` words."""
    return next(width for width in WIDTHS if count <= width)
