"""RAM for slots: mappings of address space that take memory when they are touched and can let it go again.

Covers the memory only; which tile stands where is decided by storage/arena.py and ledger.py, and how much there may be of
it is found by limits.py. Address space is taken for the slots that programs want, not for all that might ever be wanted.
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
    """Pools of slots in anonymous memory. Every mapping begins on a page, so slots of whole pages suit direct file I/O."""

    def map_pool(self, pool: Pool) -> None:
        """Back every slot that is expected of a pool with address space; again when more are. TierError if there is none.

        The pools of a divided arena are part of its ground.
        """
        if pool.ground is not None:
            self.map_ground(pool.ground)
            pool.memory = pool.ground.memory
            return
        if pool.memory is None:
            pool.memory = Slabs(pool, reserve)
        pool.memory.prepare()

    def map_ground(self, ground: Ground) -> None:
        """Back all of it with address space, once. TierError if there is none."""
        if ground.memory is None:
            ground.memory = Contiguous(reserve(ground.nbytes))

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A view of the slot; it holds the mapping by reference, so a pool may be forgotten under living views."""
        memory, offset = slot.place()
        return np.ndarray(shape, dtype, memory, offset)

    def discard(self, slot: Slot) -> None:
        """Give the memory of a free slot back to the system, as far as it covers whole pages."""
        memory, offset = slot.place()
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (offset + slot.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            memory.madvise(mmap.MADV_DONTNEED, start, stop - start)


def reserve(nbytes: int) -> mmap.mmap:
    """Address space for `nbytes`, filled with zeros, without memory until it is touched. TierError if there is none."""
    return reserve_as(mmap.mmap, nbytes)


def reserve_as(make: type[Map], nbytes: int) -> Map:
    """`reserve` as a mapping of the class `make`."""
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
