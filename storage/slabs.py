"""The memory of one pool: slabs of whole slots, added one after another as the pool grows.

Covers where a slot stands. What a slab is made of, and whether it is taken before its first use, is up to the module that gives
pools their memory (storage/host.py, asynctile/device/cuda_memory.py). A slab never moves, so the addresses of slots in use stay
the same.

The way not taken: one mapping for all that a pool might ever grow to. It runs into limits of address space.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Generic, TypeVar

from asynctile.storage.pool import Pool
from asynctile.storage.slot import Slot

#: Bytes of a slab (at least one slot) when a pool grows beyond what it expected.
SLAB_NBYTES = 2 << 20

Slab = TypeVar("Slab")


class Slabs(Generic[Slab]):
    """The slabs of one pool. take(nbytes): makes a slab. most: the most slots in a slab; None: any number."""

    def __init__(self, pool: Pool, take: Callable[[int], Slab], most: int | None = None) -> None:
        self._pool = pool
        self._slot_nbytes = pool.slot_nbytes
        self._take = take
        self._most = most
        self._firsts: list[int] = []
        self._slabs: list[Slab] = []
        self._made = 0

    def place(self, slot: Slot) -> tuple[Slab, int]:
        """Return the slab of a slot, and the slot's offset in it in bytes."""
        index = slot.index
        while index >= self._made:
            self._grow()
        slab = bisect_right(self._firsts, index) - 1
        return self._slabs[slab], (index - self._firsts[slab]) * self._slot_nbytes

    def prepare(self) -> None:
        """Take memory for every slot that the pool expects."""
        while self._made < self._pool.expected:
            self._grow()

    def _grow(self) -> None:
        count = self._pool.expected - self._made
        if count <= 0:
            count = max(1, SLAB_NBYTES // self._slot_nbytes)
        if self._most is not None:
            count = min(count, self._most)
        self._slabs.append(self._take(count * self._slot_nbytes))
        self._firsts.append(self._made)
        self._made += count
