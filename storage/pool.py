"""A pool: slots of one size. Any free slot takes any tile of the pool, so there is no fragmentation.

Pure bookkeeping. storage/arena.py decides how many slots of which sizes there are.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from asynctile.storage.ground import Ground
from asynctile.storage.slot import Holder, Slot


class Pool:
    """Slots of one size, taken from the lowest index up so that untouched memory stays untouched.

    limit: number of slots; None: as many as the arena's cap in bytes allows. made: slots that exist, used or free. expected:
    the number of slots that the pool is expected to reach; memory for all of them may be taken at once. ground: the arena's
    one block of memory (storage/ground.py), if the arena is divided. The slots are then parts of it, from byte `start` on.

    Free slots wait in two queues:
    - Slots of dead tiles go first to tiles that will be overwritten whole, the newest first, because compute has just used
      them.
    - Slots of evicted tiles go first to loads, the oldest first, because their write-back has most likely finished.
    """

    __slots__ = (
        "arena", "slot_nbytes", "limit", "ground", "start", "expected", "memory", "used", "made",
        "_dead", "_evicted", "_dropped",
    )  # fmt: skip

    def __init__(
        self, arena: Holder, slot_nbytes: int, limit: int | None, ground: Ground | None = None, start: int = 0
    ) -> None:
        self.arena = arena
        self.slot_nbytes = slot_nbytes
        self.limit = limit
        self.ground = ground
        self.start = start
        self.expected = limit or 0
        self.memory: Any = None
        self.used = 0
        self.made = 0
        self._dead: deque[Slot] = deque()
        self._evicted: deque[Slot] = deque()
        #: slots whose memory was released; they are made again first
        self._dropped: list[Slot] = []

    def take(self, *, for_load: bool) -> Slot | None:
        """Take a free slot; None if there is none."""
        if for_load and self._evicted:
            slot = self._evicted.popleft()
        elif self._dead:
            slot = self._dead.popleft() if for_load else self._dead.pop()
        elif self._evicted:
            slot = self._evicted.popleft()
        elif self._may_grow():
            slot = self._grown()
        else:
            return None
        self.used += 1
        self.arena.used_nbytes += self.slot_nbytes
        return slot

    def give(self, slot: Slot, *, evicted: bool) -> None:
        self.used -= 1
        self.arena.used_nbytes -= self.slot_nbytes
        (self._evicted if evicted else self._dead).append(slot)

    def claim(self, slot: Slot) -> None:
        """Take this slot, which must be free: it was given back too early, or a schedule puts a tile there."""
        (self._evicted if slot in self._evicted else self._dead).remove(slot)
        self.used += 1
        self.arena.used_nbytes += self.slot_nbytes

    def free_slots(self) -> list[Slot]:
        """Return the slots that exist and are free."""
        return [*self._dead, *self._evicted]

    def tidy(self) -> None:
        """Sort the free slots, so that tiles that will be overwritten take the lowest slot first.

        If the same slots are free, taking as many of them then yields the same ones again.
        """
        free = sorted(self.free_slots(), key=lambda slot: slot.index, reverse=True)
        self._evicted.clear()
        self._dead = deque(free)

    def drop_free(self) -> list[Slot]:
        """Forget the free slots and return them, so that the cap has room for other sizes. Nothing may be in flight on them."""
        slots = self.free_slots()
        self._dead.clear()
        self._evicted.clear()
        self._dropped += slots
        self.made -= len(slots)
        self.arena.made_nbytes -= len(slots) * self.slot_nbytes
        self.expected = self.made
        return slots

    def _may_grow(self) -> bool:
        return self.made < self.limit if self.limit is not None else self.arena.may_grow(self.slot_nbytes)

    def _grown(self) -> Slot:
        self.made += 1
        self.arena.made_nbytes += self.slot_nbytes
        return self._dropped.pop() if self._dropped else self._make(self.made - 1)

    def _make(self, index: int) -> Slot:
        return Slot(self, index, self.start + index * self.slot_nbytes, self.slot_nbytes)
