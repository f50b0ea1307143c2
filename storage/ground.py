"""The ground of an arena: one block of memory as large as the cap, below its pools or, while it is packed, below its tiles.

Pure bookkeeping. Pools are parts of the ground that are fixed once (storage/arena.py). While the arena is packed, a tile may
stand at any offset; the plan computes the offsets, and nothing searches here. The ground records which ranges are taken (they
never overlap), and the guards of the free ranges: work on a range may still be in flight when new owners get parts of it, and
they must wait for all of that work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from asynctile.storage.errors import AsynctileError
from asynctile.storage.slot import Holder, Slot


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

    __slots__ = ("arena", "nbytes", "limit", "memory", "used", "_taken", "_freed")

    def __init__(self, arena: Holder, nbytes: int) -> None:
        self.arena = arena
        self.nbytes = nbytes
        self.limit: int | None = None
        self.memory: Any = None
        self.used = 0
        self._taken = Ranges()
        #: free ranges that were taken before, or parts of them: the source of guards
        self._freed = Ranges()

    @property
    def taken_nbytes(self) -> int:
        """Bytes of the taken ranges, added up anew."""
        return sum(stop - start for start, stop, _ in self._taken)

    def range_at(self, offset: int, nbytes: int) -> Slot:
        """Return a slot for these bytes, free or not, without taking it."""
        return Slot(self, offset, offset, nbytes)

    def claim(self, slot: Slot) -> None:
        """Take a range, all of which must be free; its guard then includes all work on its bytes.

        Raises AsynctileError, and takes nothing, if some bytes are taken or outside the ground.
        """
        start, stop = slot.offset, slot.offset + slot.nbytes
        if not 0 <= start < stop <= self.nbytes:
            raise AsynctileError(f"bytes {start} to {stop} are outside the ground of {self.nbytes}; this is a bug in asynctile")
        self._taken.put(start, stop, slot)
        slot.stands_behind(self._freed.take_out(start, stop))
        self.used += 1
        self.arena.used_nbytes += slot.nbytes

    def give(self, slot: Slot, *, evicted: bool) -> None:
        start, stop = slot.offset, slot.offset + slot.nbytes
        owners = self._taken.take_out(start, stop)
        assert owners == [slot], f"{slot.nbytes} bytes at {start} were not taken"
        self._freed.put(start, stop, slot)
        self.used -= 1
        self.arena.used_nbytes -= slot.nbytes

    def follow(self, slots: list[Slot]) -> None:
        """Remember the free `slots` of former pools: the next owners of their bytes must wait for the work on them."""
        for slot in slots:
            self._freed.put(slot.offset, slot.offset + slot.nbytes, slot)

    def forget(self) -> None:
        """Forget all guards. Nothing may be taken or in flight."""
        assert not self.used, "tiles stand on it"
        self._freed = Ranges()


class Ranges:
    """Ranges of bytes, each with the slot it belongs to, in ascending order and without overlap."""

    __slots__ = ("_starts", "_parts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[tuple[int, int, Slot]] = []

    def __iter__(self) -> Iterator[tuple[int, int, Slot]]:
        return iter(self._parts)

    def put(self, start: int, stop: int, slot: Slot) -> None:
        """Add a range; AsynctileError, and nothing added, if it overlaps another."""
        first, last = self._overlapped(start, stop)
        if first != last:
            theirs = "{} to {}".format(*self._parts[first][:2])
            raise AsynctileError(f"bytes {start} to {stop} overlap bytes {theirs}; this is a bug in asynctile")
        self._starts.insert(first, start)
        self._parts.insert(first, (start, stop, slot))

    def take_out(self, start: int, stop: int) -> list[Slot]:
        """Remove these bytes and return the slots that they belonged to.

        A part that extends beyond these bytes keeps its rest.
        """
        first, last = self._overlapped(start, stop)
        if first == last:
            return []
        old = self._parts[first:last]
        rest = []
        if old[0][0] < start:
            rest.append((old[0][0], start, old[0][2]))
        if old[-1][1] > stop:
            rest.append((stop, old[-1][1], old[-1][2]))
        self._parts[first:last] = rest
        self._starts[first:last] = [part[0] for part in rest]
        return list(dict.fromkeys(slot for _, _, slot in old))

    def _overlapped(self, start: int, stop: int) -> tuple[int, int]:
        """Return the index of the first part that has any of these bytes, and the index behind the last one."""
        first = bisect_right(self._starts, start)
        if first and self._parts[first - 1][1] > start:
            first -= 1
        last = first
        while last < len(self._parts) and self._parts[last][0] < stop:
            last += 1
        return first, last
