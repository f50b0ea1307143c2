"""The pages of a KV cache as numbers: which are taken, and how many a program has to visit. Pure.

A page holds the keys and values of consecutive positions of one sequence, in every layer. cache.py holds its tiles. A sequence
takes all its pages at once, in ascending order. So folding pages in order of number folds the sequence's positions in order,
whatever the numbers are and whichever sequence had the pages before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from asynctile.layers.config import Config

#: The most positions of a page: large enough for few operations a token, small enough that short texts waste little.
MOST_POSITIONS = 64


def page_positions(config: Config, tile: int) -> int:
    """Return the positions of a page, a function of the model's cut alone.

    Keys and values together are no taller than a tile.
    """
    return max(1, min(MOST_POSITIONS, tile // 2, config.block_size))


class Pages:
    """Page numbers 0 .. most - 1. The lowest free numbers are given first.

    taken: how many are taken. visited: every taken number is below this. It is 0 once nothing is taken and never falls before
    that, so that programs, which visit all pages below it, seldom change. rounded: `visited` is rounded up to at most this;
    None: to at most `most`.
    """

    def __init__(self, most: int, rounded: int | None = None) -> None:
        self.most = most
        self._rounded = most if rounded is None else rounded
        self.taken = self.visited = 0
        #: a heap of all and only the free numbers below `_end`
        self._free: list[int] = []
        self._end = 0

    def has(self, count: int) -> bool:
        """Return whether `count` pages are free."""
        return self.taken + count <= self.most

    def reserve(self, count: int) -> tuple[int, ...]:
        """Take the `count` lowest free numbers and return them, ascending.

        At least `count` pages must be free (see `has`), which is asserted.
        """
        assert self.has(count), f"{count} pages are wanted, {self.most - self.taken} of {self.most} are free"
        again = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        new = range(self._end, self._end + count - len(again))
        self._end = max(self._end, new.stop)
        self.taken += count
        self.visited = max(self.visited, self._bucket(self._end))
        return *again, *new

    def free(self, numbers: Iterable[int]) -> None:
        """Give these pages back."""
        for number in numbers:
            heapq.heappush(self._free, number)
            self.taken -= 1
        if not self.taken:
            self._free, self._end, self.visited = [], 0, 0

    def needed(self, count: int) -> int:
        """Return what `visited` would be with `count` more pages taken."""
        return max(self.visited, self._bucket(self._end + max(0, count - len(self._free))))

    def _bucket(self, count: int) -> int:
        """Return `count` rounded up to a power of two where there is room, so that few programs are recorded; 0 for 0."""
        return max(count, min(self.most, self._rounded, 1 << (count - 1).bit_length())) if count else 0
