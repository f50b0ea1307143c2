"""The pages of a KV cache as numbers: which are taken, by whom, and how many a program has to visit. Pure.

A page is the keys and values of so many consecutive positions of one sequence, in every layer. The tiles that hold them are
cache.py's. A sequence takes all its pages at once, in ascending order, so that whoever folds pages in order of number folds
positions in order, whatever numbers they are and whoever had them before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from asynctile.layers.config import Config

#: The most positions of a page: enough for few operations a token, few enough that short texts waste little.
MOST_POSITIONS = 64


def page_positions(config: Config, tile: int) -> int:
    """Positions of a page: a function of how the model is cut alone. Keys and values together are no taller than a tile."""
    return max(1, min(MOST_POSITIONS, tile // 2, config.block_size))


class Pages:
    """Numbers 0 .. most - 1, of which the lowest free ones are given first.

    taken: how many. visited: numbers below this may be taken; 0 once nothing is, else it never falls, so that programs that
    visit pages change seldom.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = self.visited = 0
        #: all and only the free numbers below `_end`
        self._free: list[int] = []
        self._end = 0

    def has(self, count: int) -> bool:
        """Whether so many are free."""
        return self.taken + count <= self.most

    def reserve(self, count: int) -> tuple[int, ...]:
        """The `count` lowest free numbers, ascending, which must be there."""
        assert self.has(count), f"{count} pages are wanted, {self.most - self.taken} of {self.most} are free"
        again = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        new = range(self._end, self._end + count - len(again))
        self._end = max(self._end, new.stop)
        self.taken += count
        self.visited = max(self.visited, self._bucket(self._end))
        return *again, *new

    def free(self, numbers: Iterable[int]) -> None:
        """Give them back."""
        for number in numbers:
            heapq.heappush(self._free, number)
            self.taken -= 1
        if not self.taken:
            self._free, self._end, self.visited = [], 0, 0

    def needed(self, count: int) -> int:
        """What `visited` would be if `count` more were taken."""
        return max(self.visited, self._bucket(self._end + max(0, count - len(self._free))))

    def _bucket(self, count: int) -> int:
        """The next power of two, so that there are few programs, or all there are."""
        return min(self.most, 1 << (count - 1).bit_length()) if count else 0
