"""A slot: bytes of a tier's memory that one tile at a time may stand in.

Slots of one size are a pool's (storage/pool.py); ranges of bytes that begin anywhere are the ground's (storage/ground.py). Who
stands in one is decided by storage/ledger.py.
"""

from __future__ import annotations

from typing import Any, Protocol


class Home(Protocol):
    """Who hands slots out. memory: where they are: its `place(slot)` says in which block, and how far behind its start.

    limit: how many there are, where they are counted; None where they are not. used: how many are taken.
    """

    memory: Any
    limit: int | None
    used: int

    def give(self, slot: Slot, *, evicted: bool) -> None:
        """It is free. evicted: its tile has left, and may still be on its way; else the tile is dead."""

    def claim(self, slot: Slot) -> None:
        """Take this slot, which is free: it was given too early, or a schedule has a tile there."""


class Holder(Protocol):
    """The arena as its pools and its ground see it: what they count in."""

    used_nbytes: int
    made_nbytes: int

    def may_grow(self, nbytes: int) -> bool: ...


class Slot:
    """`nbytes` bytes from `offset` on: of the ground where the arena is divided, else of its pool.

    index: its number in its pool; of a range of bytes its offset.
    """

    __slots__ = ("pool", "index", "offset", "nbytes", "_guard", "_behind")

    def __init__(self, pool: Home, index: int, offset: int, nbytes: int) -> None:
        self.pool = pool
        self.index = index
        self.offset = offset
        self.nbytes = nbytes
        self._guard: tuple[Any, ...] = ()
        self._behind: tuple[Slot, ...] = ()

    @property
    def guard(self) -> tuple[Any, ...]:
        """What the next owner must wait for (events; opaque here), those on the bytes before it included."""
        if not self._behind:
            return self._guard
        found: dict[Slot, None] = {}
        left: list[Slot] = [self]
        while left:
            slot = left.pop()
            if slot not in found:  # what was taken back may stand behind each other
                found[slot] = None
                left += reversed(slot._behind)
        return tuple(dict.fromkeys(event for slot in found for event in slot._guard))

    @guard.setter
    def guard(self, events: tuple[Any, ...]) -> None:
        self._guard, self._behind = events, ()

    def stands_behind(self, others: list[Slot]) -> None:
        """Its bytes were theirs, who may not know yet what they are guarded by: it will be asked for when it is needed."""
        self._behind += tuple([other for other in others if other is not self])

    def place(self) -> tuple[Any, int]:
        """The block of memory that it is part of, and how many bytes behind the start of that it begins."""
        place: tuple[Any, int] = self.pool.memory.place(self)
        return place
