"""The ground of an arena: one block of memory as large as the cap, below its pools or, while it is packed, below its tiles.

Pure bookkeeping. Pools are parts of the ground that are fixed once (storage/arena.py). While the arena is packed, a tile may
stand at any offset; the plan computes the offsets, and nothing searches here. The ground records which ranges are taken: they
never overlap. It keeps no events of earlier owners, because the plan orders the work on a range.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Any

from asynctile.storage.errors import AsynctileError
from asynctile.storage.slot import Holder, Slot

_OFFSET = attrgetter("offset")


class Contiguous:
    """Memory in one piece. whole: the object that its device made, an address or a mapping."""

    __slots__ = ("whole", "__weakref__")

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def place(self, slot: Slot) -> tuple[Any, int]:
        """Return the block and the slot's offset in it, as `Slabs.place` does (slabs.py)."""
        return self.whole, slot.offset


class Ground:
    """One block of `nbytes` bytes for the slots of `arena`. memory: a Contiguous, once it has been mapped."""

    __slots__ = ("arena", "nbytes", "limit", "memory", "used", "_taken")

    def __init__(self, arena: Holder, nbytes: int) -> None:
        self.arena = arena
        self.nbytes = nbytes
        self.limit: int | None = None
        self.memory: Any = None
        self.used = 0
        #: by offset
        self._taken: list[Slot] = []

    @property
    def taken_nbytes(self) -> int:
        """Bytes of the taken ranges, added up anew."""
        return sum(slot.nbytes for slot in self._taken)

    def range_at(self, offset: int, nbytes: int) -> Slot:
        """Return a slot for these bytes, free or not, without taking it."""
        return Slot(self, offset, offset, nbytes)

    def claim(self, slot: Slot) -> None:
        """Take a range, all of which must be free.

        Raises AsynctileError, and takes nothing, if some bytes are taken or outside the ground.
        """
        start, stop = slot.offset, slot.offset + slot.nbytes
        if not 0 <= start < stop <= self.nbytes:
            raise AsynctileError(f"bytes {start} to {stop} are outside the ground of {self.nbytes}; this is a bug in asynctile")
        index = bisect_right(self._taken, start, key=_OFFSET)
        for other in self._taken[max(0, index - 1) : index + 1]:
            theirs = other.offset, other.offset + other.nbytes
            if theirs[0] < stop and start < theirs[1]:
                raise AsynctileError(
                    f"bytes {start} to {stop} overlap bytes {theirs[0]} to {theirs[1]}; this is a bug in asynctile"
                )
        self._taken.insert(index, slot)
        self.used += 1
        self.arena.used_nbytes += slot.nbytes

    def give(self, slot: Slot, *, evicted: bool) -> None:
        index = bisect_right(self._taken, slot.offset, key=_OFFSET) - 1
        assert index >= 0 and self._taken[index] is slot, f"{slot.nbytes} bytes at {slot.offset} were not taken"
        del self._taken[index]
        self.used -= 1
        self.arena.used_nbytes -= slot.nbytes
