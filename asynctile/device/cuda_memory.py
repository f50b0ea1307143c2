"""Memory for the slots of a GPU and for the pinned RAM below it.

Both come in slabs (storage/slabs.py) of as many slots as a program wants, when the first is used. Device memory goes back with
its pool. Pinned RAM is the anonymous memory of storage/host.py, locked: cut exactly, while CuPy's own pinned pool rounds each
size up to a power of two.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np

from asynctile.device.driver import Driver, OutOfMemory
from asynctile.errors import BudgetError
from asynctile.kernels.cuda.array import Array
from asynctile.storage.ground import Contiguous, Ground
from asynctile.storage.host import HostMemory, reserve_as
from asynctile.storage.pool import Pool
from asynctile.storage.sizes import format_size
from asynctile.storage.slabs import Slabs
from asynctile.storage.slot import Slot

#: What is pinned at once, at most: the loop waits for it.
PINNED_NBYTES = 64 << 20


class DeviceMemory:
    """Pools of slots on a GPU. What is behind a pool is freed as soon as the pool lets it go: an Array does not hold it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def map_pool(self, pool: Pool) -> None:
        """Nothing yet: memory is taken when it is first used, for as many slots as are then expected.

        The pools of a divided arena are part of its ground, which is taken at once.
        """
        if pool.ground is not None:
            self.map_ground(pool.ground)
            pool.memory = pool.ground.memory
        if pool.memory is not None:
            return
        taken: list[int] = []

        def take(nbytes: int) -> int:
            taken.append(self._malloc(nbytes))
            return taken[-1]

        pool.memory = Slabs(pool, take)
        weakref.finalize(pool.memory, _free_all, self.driver, taken).atexit = False

    def map_ground(self, ground: Ground) -> None:
        """All of it at once. BudgetError if the GPU has not as much."""
        if ground.memory is None:
            ground.memory = Contiguous(self._malloc(ground.nbytes))
            weakref.finalize(ground.memory, self.driver.free, ground.memory.whole).atexit = False

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Array:
        address, offset = slot.place()
        return Array(address + offset, shape, np.dtype(dtype))

    def discard(self, slot: Slot) -> None:
        """Not called: slots of a slab go together, so an arena on a GPU is rigid (storage/arena.py)."""

    def _malloc(self, nbytes: int) -> int:
        try:
            return self.driver.malloc(nbytes)
        except OutOfMemory as error:
            free, total = self.driver.memory()
            raise BudgetError(
                f"{self.driver.name} has no {format_size(nbytes)} for tiles: {format_size(free)} of {format_size(total)} "
                "are free; lower device_memory, or end what else fills the GPU",
                floor=nbytes,
            ) from error


class PinnedMemory(HostMemory):
    """RAM that the driver has locked, so that copies run beside the host and at the full rate of the link."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def map_pool(self, pool: Pool) -> None:
        """Nothing yet: RAM is locked when it is first used, the loop waits for it: so there is no ground here."""
        if pool.memory is None:
            pool.memory = Slabs(pool, self.block, most=max(1, PINNED_NBYTES // pool.slot_nbytes))

    def discard(self, slot: Slot) -> None:
        """Nothing: what is locked cannot be let go."""

    def block(self, nbytes: int) -> PinnedMap:
        """Pinned RAM; it lives as long as it is referred to."""
        memory = reserve_as(PinnedMap, nbytes)
        memory.driver, memory.nbytes = self._driver, nbytes
        memory.pin()
        return memory


class PinnedMap(mmap.mmap):
    """A mapping that is locked. It is unlocked before it goes, which a weak reference would learn too late.

    nbytes: what was asked for. address: where it begins, once it is locked.
    """

    driver: Driver
    nbytes: int
    address: int | None = None

    def pin(self) -> None:
        """Lock it. BudgetError if there is no room for that, DeviceError if it cannot be."""
        address = np.frombuffer(self, np.uint8, 1).ctypes.data
        try:
            self.driver.pin(address, self.nbytes)
        except OutOfMemory as error:
            raise BudgetError(
                f"{format_size(self.nbytes)} more of RAM cannot be locked for copies to {self.driver.name}: {error}; "
                "lower host_memory, or give this process more RAM",
                floor=self.nbytes,
            ) from error
        self.address = address

    def __del__(self) -> None:
        if self.address is not None:
            self.driver.unpin(self.address)


def _free_all(driver: Driver, addresses: list[int]) -> None:
    for address in addresses:
        driver.free(address)
