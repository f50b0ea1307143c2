"""Memory for the slots of a GPU and for the pinned RAM below it.

Both are allocated in slabs (storage/slabs.py) when the first slot is used, each for as many slots as the program wants. Device
memory is freed with its pool. Pinned RAM is the anonymous memory of storage/host.py, locked. It is cut exactly, while CuPy's
own pinned pool rounds each size up to a power of two.
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

#: The most bytes to pin in one call: the event loop waits for the call.
PINNED_NBYTES = 64 << 20


class DeviceMemory:
    """Pools of slots on a GPU. A pool's memory is freed as soon as the pool drops it: an Array does not keep it alive."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def map_pool(self, pool: Pool) -> None:
        """Prepare slabs, without allocating: memory is taken on first use, for as many slots as the pool then expects.

        The pools of a divided arena are parts of its ground, one block of memory that is allocated at once.
        """
        if pool.ground is not None:
            self.map_ground(pool.ground)
            pool.memory = pool.ground.memory
        if pool.memory is not None:
            return
        taken: list[int] = []

        def take(nbytes: int) -> int:
            taken.append(self.allocate(nbytes))
            return taken[-1]

        pool.memory = Slabs(pool, take)
        weakref.finalize(pool.memory, _free_all, self.driver, taken).atexit = False

    def map_ground(self, ground: Ground) -> None:
        """Allocate the whole ground at once. Raises BudgetError if the GPU has too little memory."""
        if ground.memory is None:
            ground.memory = Contiguous(self.allocate(ground.nbytes))
            weakref.finalize(ground.memory, self.driver.free, ground.memory.whole).atexit = False

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Array:
        address, offset = slot.place()
        return Array(address + offset, shape, np.dtype(dtype))

    def discard(self, slot: Slot) -> None:
        """Do nothing; never called.

        The slots of a slab are freed together, so an arena on a GPU is rigid (storage/arena.py).
        """

    def allocate(self, nbytes: int) -> int:
        """Allocate memory of the GPU and return its address, for `Driver.free`. BudgetError if the GPU has too little."""
        try:
            return self.driver.malloc(nbytes)
        except OutOfMemory as error:
            free, total = self.driver.memory()
            raise BudgetError(
                f"{self.driver.name} has no {format_size(nbytes)} for tiles: {format_size(free)} of {format_size(total)} "
                "are free; lower device_memory, or end the other programs on the GPU",
                floor=nbytes,
            ) from error


class PinnedMemory(HostMemory):
    """RAM that the driver has locked, so that copies run at the full rate of the link while the host does other work."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def map_pool(self, pool: Pool) -> None:
        """Prepare slabs, without locking: RAM is locked on first use.

        The event loop waits while RAM is locked, so small slabs are used and there is no ground.
        """
        if pool.memory is None:
            pool.memory = Slabs(pool, self.block, most=max(1, PINNED_NBYTES // pool.slot_nbytes))

    def discard(self, slot: Slot) -> None:
        """Do nothing: locked RAM cannot be released."""

    def block(self, nbytes: int) -> PinnedMap:
        """Return pinned RAM, which lives as long as a reference to it."""
        memory = reserve_as(PinnedMap, nbytes)
        memory.driver, memory.nbytes = self._driver, nbytes
        memory.pin()
        return memory


class PinnedMap(mmap.mmap):
    """A locked mapping, which unlocks itself before it goes. A weak reference would learn of its end too late.

    nbytes: the size that was asked for. address: where the mapping begins, None until it is locked.
    """

    driver: Driver
    nbytes: int
    address: int | None = None

    def pin(self) -> None:
        """Lock the mapping. Raises BudgetError if RAM or its limits are too small, and DeviceError for any other refusal."""
        address = np.frombuffer(self, np.uint8, 1).ctypes.data
        try:
            self.driver.pin(address, self.nbytes)
        except OutOfMemory as error:
            raise BudgetError(
                f"{format_size(self.nbytes)} more RAM cannot be locked for copies to {self.driver.name}: {error}; "
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
