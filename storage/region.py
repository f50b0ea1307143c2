"""A region of the spill file, lent to a share of an engine: a spill tier inside the file of another (storage/spill.py)."""

from __future__ import annotations

from contextlib import _GeneratorContextManager

from asynctile.storage.container import RawFile
from asynctile.storage.spill import SpillTier

__all__ = ["SpillRegion"]


class SpillRegion(SpillTier):
    """A spill tier in `nbytes` bytes of the file of `whole`, with blocks and counters of its own.

    Raises BudgetError if `whole` has no room for it. Call `give_back` when none of its transfers is in flight.
    """

    def __init__(self, whole: SpillTier, nbytes: int) -> None:
        super().__init__(whole.folder, nbytes)
        self._whole = whole
        self._closing = whole._closing
        self._block = whole.cut(nbytes, "a share of the engine")
        self._start = whole._start + self._block.offset
        self.direct = whole.direct

    def give_back(self) -> None:
        self._whole.join(self._block)

    def _grow(self, nbytes: int) -> None:
        pass  # `whole` has allocated all of it

    def _using_file(self, name: str) -> _GeneratorContextManager[RawFile]:
        return self._whole._using_file(name)
