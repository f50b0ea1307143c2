"""A slot: a range of bytes in a tier's memory for at most one tile at a time, and the events that its next owner waits for.

Slots of one size belong to a pool (storage/pool.py). Slots that begin at any offset belong to the ground
(storage/ground.py), the block of memory below all pools or, in a packed arena, below all tiles. storage/ledger.py decides
which tile gets which slot.
"""

from __future__ import annotations

from typing import Any, Protocol


class Home(Protocol):
    """The owner of slots, which hands them out: a pool, or the ground (storage/ground.py).

    memory: where the slots are; `memory.place(slot)` returns the block of memory and the slot's offset in it.
    limit: how many slots there are; None if slots are not counted. used: how many are taken.
    """

    memory: Any
    limit: int | None
    used: int

    def give(self, slot: Slot, *, evicted: bool) -> None:
        """Return a slot. evicted: its tile was evicted, and a write-back may be in flight; otherwise its tile is dead."""

    def claim(self, slot: Slot) -> None:
        """Take this slot, which must be free: it was given back too early, or a schedule puts a tile there."""


class Holder(Protocol):
    """The arena as its pools and its ground see it: the counters that they update."""

    used_nbytes: int
    made_nbytes: int

    def may_grow(self, nbytes: int) -> bool: ...


class Slot:
    """`nbytes` bytes from `offset` on, within the ground of a divided or packed arena, otherwise within its pool.

    index: its number in its pool; for a range of the ground, its offset.
    guard: the events that the next owner must wait for (opaque here). Ranges of the ground have new slots for new owners.
    """

    __slots__ = ("pool", "index", "offset", "nbytes", "guard")

    def __init__(self, pool: Home, index: int, offset: int, nbytes: int) -> None:
        self.pool = pool
        self.index = index
        self.offset = offset
        self.nbytes = nbytes
        self.guard: tuple[Any, ...] = ()

    def place(self) -> tuple[Any, int]:
        """Return the block of memory that contains the slot, and the slot's offset in it in bytes."""
        place: tuple[Any, int] = self.pool.memory.place(self)
        return place
