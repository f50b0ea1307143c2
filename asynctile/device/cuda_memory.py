"""Memory for the slots of a GPU and for the pinned RAM below it.

Both come in slabs of whole slots: of as many as a program wants, when the first is used. Device memory goes back with its pool.
Pinned RAM is the anonymous memory of storage/host.py, locked piece by piece: cut exactly, while CuPy's own pinned pool rounds
each size up to a power of two.
"""

from __future__ import annotations

import math
import mmap
import weakref
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np

from asynctile.device.driver import Driver, OutOfMemory
from asynctile.errors import BudgetError
from asynctile.kernels.cuda.array import Array
from asynctile.storage.arena import Pool, Slot
from asynctile.storage.host import HostMemory, reserve_as, slots_nbytes
from asynctile.storage.sizes import format_size

#: A slab of a pool that has grown beyond what was expected of it: as cudaMalloc takes memory from the GPU.
SLAB_NBYTES = 2 << 20
#: What is pinned at once, at most: the loop waits for it.
PINNED_NBYTES = 64 << 20


class Slabs:
    """The slabs of one pool, one after another. take(first slot, slots): make a slab and return its address.

    most: slots of a slab, at most; None for any number. step: slabs hold a multiple of so many.
    """

    def __init__(self, pool: Pool, take: Callable[[int, int], int], most: int | None = None, step: int = 1) -> None:
        self._pool = pool
        self._slot_nbytes = pool.slot_nbytes
        self._take = take
        self._most = most
        self._step = step
        self._firsts: list[int] = []
        self._starts: list[int] = []
        self._made = 0

    def address(self, index: int) -> int:
        """Address of slot `index`; slots are asked for from the first on."""
        while index >= self._made:
            self._grow()
        slab = bisect_right(self._firsts, index) - 1
        return self._starts[slab] + (index - self._firsts[slab]) * self._slot_nbytes

    def _grow(self) -> None:
        count = self._pool.expected - self._made
        if count <= 0:
            count = max(1, SLAB_NBYTES // self._slot_nbytes)
        if self._most is not None:
            count = min(count, self._most)
        count = -(-count // self._step) * self._step
        self._starts.append(self._take(self._made, count))
        self._firsts.append(self._made)
        self._made += count


class DeviceMemory:
    """Pools of slots on a GPU. What is behind a pool is freed as soon as the pool lets it go: an Array does not hold it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def map_pool(self, pool: Pool) -> None:
        taken: list[int] = []
        slot_nbytes = pool.slot_nbytes

        def take(first: int, slots: int) -> int:
            taken.append(self._malloc(slots * slot_nbytes))
            return taken[-1]

        pool.memory = Slabs(pool, take)
        weakref.finalize(pool.memory, _free_all, self._driver, taken).atexit = False

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Array:
        return Array(slot.pool.memory.address(slot.index), shape, np.dtype(dtype))

    def discard(self, slot: Slot) -> None:
        """Not called: slots of a slab go together, so an arena on a GPU is rigid (storage/arena.py)."""

    def _malloc(self, nbytes: int) -> int:
        try:
            return self._driver.malloc(nbytes)
        except OutOfMemory as error:
            free, total = self._driver.memory()
            raise BudgetError(
                f"{self._driver.name} has no {format_size(nbytes)} for tiles: {format_size(free)} of {format_size(total)} "
                "are free; lower device_memory, or end what else fills the GPU",
                floor=nbytes,
            ) from error


class PinnedMemory(HostMemory):
    """RAM that the driver has locked, so that copies run beside the host and at the full rate of the link."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def map_pool(self, pool: Pool) -> None:
        memory = self._reserve(slots_nbytes(pool))
        slot_nbytes = pool.slot_nbytes

        def pin(first: int, slots: int) -> int:
            start = first * slot_nbytes
            return memory.pin(start, min(slots * slot_nbytes, memory.nbytes - start))

        # Two slabs must not share a page, which can be locked once only.
        whole_pages = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, slot_nbytes)
        memory.slabs = Slabs(pool, pin, most=max(1, PINNED_NBYTES // slot_nbytes), step=whole_pages)
        pool.memory = memory

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        slot.pool.memory.slabs.address(slot.index)
        return super().array(slot, shape, dtype)

    def discard(self, slot: Slot) -> None:
        """Nothing: what is locked cannot be let go."""

    def block(self, nbytes: int) -> PinnedMap:
        """Pinned RAM outside any pool; it lives as long as it is referred to."""
        memory = self._reserve(nbytes)
        memory.pin(0, nbytes)
        return memory

    def _reserve(self, nbytes: int) -> PinnedMap:
        memory = reserve_as(PinnedMap, nbytes)
        memory.driver, memory.nbytes = self._driver, nbytes
        return memory


class PinnedMap(mmap.mmap):
    """A mapping of which parts are locked. It unlocks them before it goes, which a weak reference would learn too late.

    nbytes: what was asked for. slabs: of the pool that it is behind.
    """

    driver: Driver
    nbytes: int
    slabs: Slabs

    def pin(self, offset: int, nbytes: int) -> int:
        """Lock a part; returns its address. BudgetError if there is no room for that, DeviceError if it cannot be."""
        address = np.frombuffer(self, np.uint8, 1, offset).ctypes.data
        try:
            self.driver.pin(address, nbytes)
        except OutOfMemory as error:
            raise BudgetError(
                f"{format_size(nbytes)} more of RAM cannot be locked for copies to {self.driver.name}: {error}; "
                "lower host_memory, or give this process more RAM",
                floor=nbytes,
            ) from error
        self.__dict__.setdefault("pinned", []).append(address)
        return address

    def __del__(self) -> None:
        for address in self.__dict__.get("pinned", ()):
            self.driver.unpin(address)


def _free_all(driver: Driver, addresses: list[int]) -> None:
    for address in addresses:
        driver.free(address)


