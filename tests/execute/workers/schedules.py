"""Schedules of marks: each entry leaves a mark, and looks for the marks of all entries that it must come after.

Each entry has a mark in `marks`. An operation adds one to its own and counts in `missing` how many of the marks before it were
not there yet. A copy writes a 1 over its own. The code that answers a transfer may do as it likes.
"""

import numpy as np
from numba import njit, types

from asynctile.execute.workers.layout import layout
from asynctile.execute.workers.native import WIDTHS, look
from asynctile.execute.workers.tables import OPERATION, TRANSFER, Tables

WORDS = types.int64[::1]
SIGNATURE = types.void(WORDS, WORDS, WORDS, types.int64)


@njit(nogil=True)
def mark(marks, before, missing, entry):
    for other in before:
        missing[entry] += marks[other] == 0
    marks[entry] += 1


@njit(nogil=True)
def number(marks, before, missing, entry):
    """Store the number of marks in `missing`."""
    missing[entry] = marks.sum()
    marks[entry] += 1


@njit(nogil=True)
def fail(marks, before, missing, entry):
    """Raise if an entry has a mark before it."""
    marks[entry] += 1
    if before.size >= 0:
        raise ValueError("an entry that fails")


@njit(nogil=True)
def overdraw(marks, before, missing, entry):
    """Ask for more memory than there is."""
    marks[entry] += 1
    missing[entry] += np.ones(1 << 60)[entry] > 2


@njit(nogil=True)
def hold(marks, before, missing, entry):
    """Run until some other thread has set the entry's mark."""
    while look(marks[entry:].ctypes.data) == 0:
        pass


def room(count):
    """Return how many words a call with `count` words reads."""
    return next(width for width in WIDTHS if count <= width)


def compiled(kernel):
    """Return the kernel, compiled for its one signature. Each takes a tenth of a second, so only those in use are compiled."""
    if not kernel.signatures:
        kernel.compile(SIGNATURE)
    return kernel


class Marked:
    """A schedule of `kinds` with edges (earlier, later[, travels]), and the marks that its entries leave.

    devices: of each entry; None for device 0.
    """

    def __init__(self, kinds, edges=(), stretches=None, reports=(), kernels=None, nbytes=8, devices=None):
        n = len(kinds)
        self.marks, self.missing = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.ones, self.before = np.ones(n, np.int64), []
        edges = sorted((edge[0], edge[1], edge[2] if len(edge) > 2 else 1) for edge in edges)
        first, later, travels = np.array(edges, np.int64).reshape(-1, 3).T
        words, words_at, counts, address = [], [], np.zeros(n, np.int32), np.zeros(n, np.int64)
        for entry, kind in enumerate(kinds):
            self.before.append(np.array(first[later == entry], np.int64))
            words_at.append(len(words))
            if kind == OPERATION:
                block = self._call((kernels or {}).get(entry, mark), entry)
                address[entry], counts[entry] = block.address, block.count
                words += [*block.words, *[0] * (room(block.count) - block.count)]
            elif kind != TRANSFER:
                words += [self.marks[entry:].ctypes.data, self.ones.ctypes.data, nbytes]
        reports_of = np.zeros(n, np.int8)
        reports_of[list(reports)] = 1
        self.tables = Tables(
            kinds=np.array(kinds, np.int8),
            devices=np.zeros(n, np.int8) if devices is None else np.array(devices, np.int8),
            needs=np.bincount(later, minlength=n).astype(np.int32),
            successors_at=np.searchsorted(first, np.arange(n + 1)),
            successors=later.astype(np.int32),
            travels=travels.astype(np.int8),
            stretches=np.zeros(n, np.int32) if stretches is None else np.array(stretches, np.int32),
            reports=reports_of,
            address=address,
            words=np.array(words, np.int64),
            words_at=np.array(words_at, np.int64),
            counts=counts,
            reals=np.zeros((n, 4)),
            what=[f"entry {entry}" for entry in range(n)],
            keep=self,
        )

    def _call(self, kernel, entry):
        arrays = self.marks, self.before[entry], self.missing
        block = layout(compiled(kernel), [(array.shape, array.dtype) for array in arrays], (entry,), False)
        for place, array in zip(block.pointers, arrays, strict=True):
            block.words[place] = array.ctypes.data
        return block


async def play(player, tables, stretches=1):
    """Run them from beginning to end without a look at errors."""
    if player.tables is not tables:
        player.attach(tables)
    player.begin()
    for stretch in range(stretches):
        player.release(stretch)
    for stretch in range(stretches):
        await player.ended(stretch)[0].settled()
