"""The sum of a gradient's partials, one a replica: a fixed binary tree, added up as a binary counter counts. Pure.

After every partial, each subtree that is complete is one sum. So at most log2(count) + 1 partials and sums are alive at once,
and the shape of the tree depends on nothing but their number. gradients.py makes the partials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Partials(Generic[T]):
    """The partials of one gradient so far, in complete subtrees of a binary tree.

    add: called as add(source, target) for each inner node of the tree; target then stands for the node.
    """

    def __init__(self, add: Callable[[T, T], None]) -> None:
        self._add = add
        #: (number of partials, their sum) of each subtree, from the left; the numbers are falling powers of two
        self._subtrees: list[tuple[int, T]] = []

    def __len__(self) -> int:
        """Return how many partials were taken."""
        return sum(count for count, _ in self._subtrees)

    def take(self, partial: T) -> None:
        """Take the next partial, and add up every subtree that it completes."""
        count, total = 1, partial
        while self._subtrees and self._subtrees[-1][0] == count:
            _, left = self._subtrees.pop()
            self._add(total, left)
            count, total = 2 * count, left
        self._subtrees.append((count, total))

    @property
    def root(self) -> T:
        """The sum of all partials, whose number must be a power of two."""
        ((_, total),) = self._subtrees
        return total
