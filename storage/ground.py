"""The ground of a divided arena: one block of memory of the whole cap, under its pools or, while it is packed, under its tiles.

Pure bookkeeping. Pools are parts of it that are counted out once (storage/arena.py). While the arena is packed a tile may stand
at any offset, which whoever asks has worked out ahead: nothing is looked for here. What is kept is which ranges are taken, none
of which overlap, and what the free ones are guarded by: work on a range may be under way when others get parts of it, and they
wait for all of that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from asynctile.storage.errors import AsynctileError
from asynctile.storage.slot import Holder, Slot


class Contiguous:
    """Memory in one piece. whole: what its device made, an address or a mapping."""

    __slots__ = ("whole", "__weakref__")

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def place(self, slot: Slot) -> tuple[Any, int]:
        """As in slabs.py."""
        return self.whole, slot.offset


class Ground:
    """`nbytes` bytes in one piece, for the slots of `arena`. memory: Contiguous, once it has been mapped."""

    __slots__ = ("arena", "nbytes", "limit", "memory", "used", "_taken", "_freed")

    def __init__(self, arena: Holder, nbytes: int) -> None:
        self.arena = arena
        self.nbytes = nbytes
        self.limit: int | None = None
        self.memory: Any = None
        self.used = 0
        self._taken = Ranges()
        #: what was taken once and is free, or was part of it
        self._freed = Ranges()

    @property
    def taken_nbytes(self) -> int:
        """Added up anew."""
        return sum(stop - start for start, stop, _ in self._taken)

    def range_at(self, offset: int, nbytes: int) -> Slot:
        """A range that is nobody's so far, be it free or not."""
        return Slot(self, offset, offset, nbytes)

    def claim(self, slot: Slot) -> None:
        """Take a range that is free, behind the work on all of it. AsynctileError, and not taken, if it is not all free."""
        start, stop = slot.offset, slot.offset + slot.nbytes
        if not 0 <= start < stop <= self.nbytes:
            raise AsynctileError(f"bytes {start} to {stop} are not within {self.nbytes}; this is a fault of asynctile")
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
        """These were free when its pools were given up: what comes to their bytes waits for the work on them."""
        for slot in slots:
            self._freed.put(slot.offset, slot.offset + slot.nbytes, slot)

    def forget(self) -> None:
        """Nothing is taken, and nothing in flight."""
        assert not self.used, "tiles stand on it"
        self._freed = Ranges()


class Ranges:
    """Parts of slots in the order of their bytes, none of which overlap."""

    __slots__ = ("_starts", "_parts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[tuple[int, int, Slot]] = []

    def __iter__(self) -> Iterator[tuple[int, int, Slot]]:
        return iter(self._parts)

    def put(self, start: int, stop: int, slot: Slot) -> None:
        """Add bytes that are in none of them; AsynctileError, and nothing added, if some are."""
        first, last = self._overlapped(start, stop)
        if first != last:
            theirs = "{} to {}".format(*self._parts[first][:2])
            raise AsynctileError(f"bytes {start} to {stop} overlap bytes {theirs}; this is a fault of asynctile")
        self._starts.insert(first, start)
        self._parts.insert(first, (start, stop, slot))

    def take_out(self, start: int, stop: int) -> list[Slot]:
        """Remove these bytes, and say whose they were; of a part that reaches beyond them the rest stays."""
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
        """The first part that has any of these bytes, and the one behind the last."""
        first = bisect_right(self._starts, start)
        if first and self._parts[first - 1][1] > start:
            first -= 1
        last = first
        while last < len(self._parts) and self._parts[last][0] < stop:
            last += 1
        return first, last
