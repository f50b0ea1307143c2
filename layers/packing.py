"""The packing of short examples into rows of equal length: `PackedRows`, and `fitting`, which chooses the length. Pure.

Examples are taken in their order. Each goes to the first open row that has room for it, as in first fit for bins (Johnson,
Near-optimal bin packing algorithms, 1973), or begins a row. At most OPEN rows are open: the fullest is closed for a new one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["PackedRows", "fitting", "row_lengths"]

#: Rows that wait for a shorter example.
OPEN = 64
#: Lengths of rows, in parts of the longest.
_PARTS = (1, 2, 4, 8)


class PackedRows:
    """Rows of at most `size` tokens. lengths: of the examples, (n,), from 1 to `size`. Each example is in one row, whole.

    Takes 8 bytes of memory for an example, and as many for a row.
    """

    def __init__(self, lengths: NDArray[np.int64], size: int) -> None:
        self.size = size
        row_of, count = _first_fit(lengths.tolist(), size)
        self._examples = np.argsort(row_of, kind="stable")
        self._ends = np.cumsum(np.bincount(row_of, minlength=count))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> list[int]:
        """Return the examples of a row, ascending."""
        begin = self._ends[row - 1] if row else 0
        return self._examples[begin : self._ends[row]].tolist()


def row_lengths(size: int, longest: int) -> list[int]:
    """Return the lengths of rows that take an example of `longest` tokens: `size`, its half, quarter and eighth, rounded up."""
    return [length for length in (math.ceil(size / part) for part in _PARTS) if length >= longest]


def fitting(lengths: NDArray[np.int64], rows: int, size: int) -> PackedRows:
    """Return a packing into rows of one of `row_lengths`.

    That is the longest of these for which there are at least so many `rows`. If there is none, it is the shortest that takes
    every example.
    """
    longest, found = int(lengths.max()), None
    for length in row_lengths(size, longest):
        found = PackedRows(lengths, length)
        if len(found) >= rows:
            break
    assert found is not None, f"an example has {longest} tokens, above {size}"
    return found


def _first_fit(lengths: list[int], size: int) -> tuple[NDArray[np.int32], int]:
    """Return the row of each example, and the number of rows."""
    row_of = np.empty(len(lengths), np.int32)
    # The open rows by number, and the room in each.
    numbers: list[int] = []
    rooms: list[int] = []
    count = 0
    for example, length in enumerate(lengths):
        slot = next((slot for slot, room in enumerate(rooms) if length <= room), None)
        if slot is None:
            if len(rooms) == OPEN:
                fullest = rooms.index(min(rooms))
                del numbers[fullest], rooms[fullest]
            slot, count = len(rooms), count + 1
            numbers.append(count - 1)
            rooms.append(size)
        row_of[example] = numbers[slot]
        rooms[slot] -= length
        if not rooms[slot]:
            del numbers[slot], rooms[slot]
    return row_of, count
