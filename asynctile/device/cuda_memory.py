"""Memory for the slots of a GPU and for the pinned RAM below it.

Device memory is taken in slabs of whole slots as slots are first used, and given back with its pool. Pinned RAM is the
anonymous memory of storage/host.py, locked slab by slab where the driver can reach it: cut exactly, while CuPy's own pinned
pool rounds each size up to a power of two.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from asynctile.device.driver import Driver, OutOfMemory
from asynctile.errors import BudgetError
from asynctile.kernels.cuda.array import Array
from asynctile.storage.arena import Pool, Slot
from asynctile.storage.host import HostMemory, reserve, slots_nbytes
from asynctile.storage.sizes import format_size

#: Slabs hold at least this much, so that neither allocations nor registrations are counted in slots.
SLAB_NBYTES = 64 << 20


class Slabs:
    """The slabs of one pool. take(index, slots): make slab `index` of that many slots and return its address."""

    def __init__(self, pool: Pool, per_slab: int, take: Callable[[int, int], int]) -> None:
        self.slot_nbytes = pool.slot_nbytes
        self.per_slab = per_slab if pool.limit is None else min(per_slab, max(pool.limit, 1))
        self._limit = pool.limit
        self._take = take
        self._addresses: dict[int, int] = {}

    def address(self, index: int) -> int:
        """Address of slot `index`."""
        slab, place = divmod(index, self.per_slab)
        start = self._addresses.get(slab)
        if start is None:
            count = self.per_slab if self._limit is None else min(self.per_slab, self._limit - slab * self.per_slab)
            start = self._addresses[slab] = self._take(slab, count)
        return start + place * self.slot_nbytes


class DeviceMemory:
    """Pools of slots on a GPU. What is behind a pool is freed as soon as the pool lets it go: an Array does not hold it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def map_pool(self, pool: Pool) -> None:
        taken: list[int] = []

        def take(slab: int, slots: int) -> int:
            taken.append(self._malloc(slots * pool.slot_nbytes))
            return taken[-1]

        # A pool with a limit is the whole of a divided cap: one piece, exactly as large.
        per_slab = pool.limit if pool.limit is not None else max(1, SLAB_NBYTES // pool.slot_nbytes)
        pool.memory = Slabs(pool, per_slab, take)
        weakref.finalize(pool.memory, _free_all, self._driver, taken).atexit = False

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Array:
        return Array(slot.pool.memory.address(slot.index), shape, np.dtype(dtype))

    def discard(self, slot: Slot) -> None:
        """Nothing: slots of a slab go together."""

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
        # Two slabs must not share a page, which can be locked once only.
        whole_pages = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, pool.slot_nbytes)
        per_slab = -(-max(1, SLAB_NBYTES // pool.slot_nbytes) // whole_pages) * whole_pages

        def pin(slab: int, slots: int) -> int:
            return memory.pin(slab * slabs.per_slab * pool.slot_nbytes, slots * pool.slot_nbytes)

        slabs = memory.slabs = Slabs(pool, per_slab, pin)
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
        memory = reserve(nbytes, PinnedMap)
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
        """Lock a part; returns its address. BudgetError if the system refuses."""
        address = np.frombuffer(self, np.uint8, 1, offset).ctypes.data
        try:
            self.driver.pin(address, nbytes)
        except OutOfMemory as error:
            raise BudgetError(
                f"the system does not lock {format_size(nbytes)} of RAM for copies to {self.driver.name}; lower host_memory, "
                "or raise the limit of locked memory (ulimit -l)",
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


