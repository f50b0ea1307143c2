"""A schedule as arrays: its entries in program order, what each waits for, and what it calls or copies.

calls.py makes the tables of a schedule, layout.py lays out the words of a call, and state.py has the arrays that a run changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

#: Kinds of entries. OPERATION calls a kernel by its address. UPLOAD and DOWNLOAD copy over their direction of the link to RAM,
#: PASS over the link from another device, COPY within one memory; their words are target, source, nbytes. The host carries out
#: a TRANSFER, and is told when it is ready.
OPERATION, UPLOAD, DOWNLOAD, PASS, COPY, TRANSFER = range(6)

#: The device of work that a worker of any device may run: operations of the host.
ANY_DEVICE = -1


@dataclass(frozen=True, eq=False)
class Tables:
    """The arrays of n entries and m edges between them, each C-contiguous.

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
        words_at[i] on. Words 0 and 1 of an OPERATION belong to the worker. A call reads the smallest of
        WIDTHS (native.py) that holds them, so as many words must exist.
    reals (n, REALS) float64: float arguments.
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

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.kinds.size

    @property
    def stretch_count(self) -> int:
        """Number of stretches, up to the last that has entries."""
        return len(self.stretch_at) - 1

    @cached_property
    def stretch_at(self) -> np.ndarray:
        """First entry of each stretch, (stretches + 1,) int64; the last item is `count`."""
        last = int(self.stretches[-1]) if self.count else -1
        return np.searchsorted(self.stretches, np.arange(last + 2)).astype(np.int64)
