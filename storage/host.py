"""RAM for slots: mappings of address space that take memory when they are touched, and can return it to the system.

Covers the memory only. storage/arena.py and ledger.py decide which tile stands where, and limits.py finds how much memory there
may be. Address space is reserved for the slots that programs need, not for all that might ever be needed.
"""

from __future__ import annotations

import mmap
from typing import Any, TypeVar

import numpy as np

from asynctile.storage.errors import TierError
from asynctile.storage.ground import Contiguous, Ground
from asynctile.storage.limits import NORESERVE, address_space
from asynctile.storage.pool import Pool
from asynctile.storage.sizes import format_size
from asynctile.storage.slabs import Slabs
from asynctile.storage.slot import Slot

Map = TypeVar("Map", bound=mmap.mmap)


class HostMemory:
    """Pools of slots in anonymous memory. Every mapping starts on a page, so slots of whole pages suit direct file I/O."""

    def map_pool(self, pool: Pool) -> None:
        """Reserve address space for every slot that a pool expects; call it again when it expects more.

        The pools of a divided arena are parts of its ground, one block of memory. TierError if the system refuses.
        """
        if pool.ground is not None:
            self.map_ground(pool.ground)
            pool.memory = pool.ground.memory
            return
        if pool.memory is None:
            pool.memory = Slabs(pool, reserve)
        pool.memory.prepare()

    def map_ground(self, ground: Ground) -> None:
        """Reserve address space for all of the ground, once. TierError if the system refuses."""
        if ground.memory is None:
            ground.memory = Contiguous(reserve(ground.nbytes))

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return a view of the slot. It refers to the mapping, so a pool may be forgotten while views are alive."""
        memory, offset = slot.place()
        return np.ndarray(shape, dtype, memory, offset)

    def discard(self, slot: Slot) -> None:
        """Return the memory of a free slot to the system, as far as it covers whole pages."""
        memory, offset = slot.place()
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (offset + slot.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            memory.madvise(mmap.MADV_DONTNEED, start, stop - start)


def reserve(nbytes: int) -> mmap.mmap:
    """Reserve address space for `nbytes`, zero-filled, without memory until it is touched. TierError if the system refuses."""
    return reserve_as(mmap.mmap, nbytes)


def reserve_as(make: type[Map], nbytes: int) -> Map:
    """Do the same as `reserve`, with a mapping of the class `make`."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    try:
        memory = make(-1, max(nbytes, mmap.PAGESIZE), flags=flags)
    except (OSError, MemoryError) as error:
        limit = min(address_space(), key=lambda limit: limit.left, default=None)
        why = f"{error}" if limit is None else f"{error}: {limit}; raise that limit"
        raise TierError(
            f"tiles need {format_size(nbytes)} of address space, which the system refuses: {why}, or lower host_memory and "
            "device_memory, and give spill a folder on a fast disk"
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
