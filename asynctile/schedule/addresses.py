"""Addresses in a tier: which bytes are whose, where a tile finds room, and who has to move aside for it.

Pure, and of no memory: numbers of tiles, offsets and sizes in bytes. Who comes and who leaves is decided in stays.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

#: Of the cheapest windows, how many are looked at more closely before it is said that there is none.
WINDOWS = 24
#: Beyond every tier.
NOWHERE = 1 << 62
#: Of holes of the same size for which nobody waits, how many are compared.
ALIKE = 16
#: Asked of a place, offset and bytes: the seconds for which it is waited, and a rank.
Waits = Callable[[int, int], tuple[float, float]]
#: What a tile weighs that moves out of the place to which it must come back, against one that need not.
TWICE = 2


class Addresses:
    """Of `nbytes` bytes. at: the offset of each tile that stands. home: where tiles should stand, by number.

    Tiles of at least `large` bytes are put at the low end of a hole, others at the high end: so the large holes are found at
    one end.
    """

    def __init__(self, nbytes: int, sizes: Sequence[int], home: Mapping[int, int] | None = None) -> None:
        self.nbytes = nbytes
        self.at: dict[int, int] = {}
        self._sizes = sizes
        self._home = home or {}
        self._large = max(sizes, default=0) // 4
        #: of what stands, ascending by offset
        self._offsets: list[int] = []
        self._tiles: list[int] = []
        #: (offset, bytes) of what is free, ascending, no two side by side
        self._holes: list[tuple[int, int]] = [(0, nbytes)]

    def take(self, tile: int, offset: int) -> None:
        """It stands there, where nobody does."""
        size = self._sizes[tile]
        index = bisect_right(self._holes, (offset, self.nbytes)) - 1
        begin, free = self._holes[index]
        assert begin <= offset and offset + size <= begin + free, "a plan of memory put two tiles in one place"
        left, right = (begin, offset - begin), (offset + size, begin + free - offset - size)
        self._holes[index : index + 1] = [hole for hole in (left, right) if hole[1]]
        place = bisect_left(self._offsets, offset)
        self._offsets.insert(place, offset)
        self._tiles.insert(place, tile)
        self.at[tile] = offset

    def give(self, tile: int) -> int:
        """It stands nowhere; returns where it stood."""
        offset, size = self.at.pop(tile), self._sizes[tile]
        place = bisect_left(self._offsets, offset)
        del self._offsets[place], self._tiles[place]
        begin, free = offset, size
        index = bisect_left(self._holes, (offset, 0))
        if index < len(self._holes) and self._holes[index][0] == offset + size:
            free += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == offset:
            index -= 1
            begin = self._holes[index][0]
            free += self._holes.pop(index)[1]
        self._holes.insert(index, (begin, free))
        return offset

    def within(self, offset: int, nbytes: int) -> list[int]:
        """Who stands there, if only in part."""
        first = bisect_right(self._offsets, offset)
        if first and self._offsets[first - 1] + self._sizes[self._tiles[first - 1]] > offset:
            first -= 1
        return self._tiles[first : bisect_left(self._offsets, offset + nbytes)]

    def room_for(self, tile: int, waits: Waits) -> int | None:
        """An offset for it: of all holes that take it that for which the least is waited, then the smallest. None if no hole
        does. waits: for a place, how long that is, and what decides between holes alike, the less the better.
        """
        size, low = self._sizes[tile], self._sizes[tile] >= self._large
        fitting = sorted([(free, begin) for begin, free in self._holes if free >= size])
        best: tuple[float, int, bool, float, int] | None = None
        for index, (free, begin) in enumerate(fitting):
            if best is not None and not best[0] and (free - size > best[1] or index >= ALIKE):
                break
            for offset in {begin, begin + free - size}:
                wait, rank = waits(offset, size)
                key = wait, free - size, (offset == begin) is not low, rank, offset
                if best is None or key < best:
                    best = key
        return None if best is None else best[-1]

    def room_made_for(self, tile: int, fixed: Collection[int]) -> tuple[int, list[tuple[int, int]]] | None:
        """An offset for it once others have moved aside: (offset, [(tile, its new offset)]), of all ways about the one that
        moves the fewest bytes. None if none of the cheapest works. fixed: tiles that must not move.

        No new place overlaps an old one, so the moves may be made in any order.
        """
        size = self._sizes[tile]
        starts, firsts, lasts = self._windows(size, fixed)
        for index in range(len(starts)):
            moves = self._moved(self._tiles[firsts[index] : lasts[index]], starts[index], size)
            if moves is not None:
                return starts[index], moves
        return None

    def cleared(self, offset: int, nbytes: int, fixed: Collection[int]) -> list[tuple[int, int]] | None:
        """How those who stand there can move elsewhere: (tile, its new offset) each; None if they cannot."""
        movers = self.within(offset, nbytes)
        return None if any(tile in fixed for tile in movers) else self._moved(movers, offset, nbytes)

    def move(self, tile: int, offset: int) -> None:
        self.give(tile)
        self.take(tile, offset)

    def _windows(self, size: int, fixed: Collection[int]) -> tuple[list[int], list[int], list[int]]:
        """Where `size` bytes could be made free, the cheapest first: their offsets, the first tile, the one behind the last."""
        offsets = np.array(self._offsets, np.int64)
        sizes = np.array([self._sizes[tile] for tile in self._tiles], np.int64)
        holes = np.array(self._holes, np.int64).reshape(-1, 2)
        ends = offsets + sizes
        starts = np.concatenate([offsets, ends - size, holes[:, 0], holes.sum(1) - size])
        starts = starts[(starts >= 0) & (starts + size <= self.nbytes)]
        first, last = np.searchsorted(ends, starts, "right"), np.searchsorted(offsets, starts + size, "left")
        home = np.array([self._home.get(tile) == self.at[tile] for tile in self._tiles], bool)
        stuck = np.array([tile in fixed for tile in self._tiles], bool)
        moved, cost, blocked = (_sums(values) for values in (sizes, sizes * np.where(home, TWICE, 1), stuck))
        free = self.nbytes - int(sizes.sum())
        possible = (moved[last] - moved[first] <= free) & (blocked[last] == blocked[first])
        possible &= _largest(sizes, first, last) <= _largest_beside(holes, starts, starts + size)
        starts, first, last = starts[possible], first[possible], last[possible]
        order = np.lexsort((starts, cost[last] - cost[first]))[:WINDOWS]
        return starts[order].tolist(), first[order].tolist(), last[order].tolist()

    def _moved(self, movers: Sequence[int], begin: int, nbytes: int) -> list[tuple[int, int]] | None:
        """Places for `movers`, the largest first, in the holes outside `nbytes` from `begin` on; None if they do not fit."""
        end, smallest = begin + nbytes, min((self._sizes[tile] for tile in movers), default=0)
        holes = []
        for offset, free in self._holes if movers else ():
            if free >= smallest:
                parts = (offset, min(offset + free, begin)), (max(offset, end), offset + free)
                holes += [[high - low, low] for low, high in parts if high - low >= smallest]
        moves = []
        for tile in sorted(movers, key=lambda one: (-self._sizes[one], self.at[one])):
            size = self._sizes[tile]
            best = min((hole for hole in holes if hole[0] >= size), default=None)
            if best is None:
                return None
            moves.append((tile, best[1]))
            best[0] -= size
            best[1] += size
        return moves


def _sums(values: np.ndarray) -> np.ndarray:
    """The sum of all before each place."""
    return np.concatenate([[0], np.cumsum(values)])


def _largest(sizes: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The largest of sizes[first:last], for each pair; 0 of none."""
    bounds = np.stack([first, last], 1).ravel()
    return np.where(first < last, np.maximum.reduceat(np.append(sizes, 0), bounds)[::2], 0)


def _largest_beside(holes: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The most bytes that a hole, or what is left of it, has in one piece outside of each window. holes: (offset, bytes)."""
    offsets, stops = np.append(holes[:, 0], NOWHERE), np.append(holes.sum(1), NOWHERE)
    wholes = np.concatenate([[0], holes[:, 1], [0]])
    before, behind = np.searchsorted(stops, begins, "right"), np.searchsorted(offsets, ends, "left")
    low = np.maximum(np.maximum.accumulate(wholes)[before], begins - offsets[before])
    high = np.maximum.accumulate(wholes[::-1])[::-1][behind + 1]
    return np.maximum(low, np.maximum(high, np.where(behind > 0, stops[behind - 1] - ends, 0)))
