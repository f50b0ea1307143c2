"""RAM for slots: mappings of address space that take memory when they are touched and can let it go again.

Covers the memory only; which tile stands where is decided by storage/arena.py and residency.py.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, TypeVar

import numpy as np
import psutil

from asynctile.storage.arena import Pool, Slot
from asynctile.storage.errors import TierError
from asynctile.storage.sizes import format_size

Map = TypeVar("Map", bound=mmap.mmap)

#: Linux's MAP_NORESERVE, which Python 3.11's mmap does not name: address space without a promise of memory.
_NORESERVE = 0x4000


class HostMemory:
    """Pools of slots in anonymous memory. Every mapping begins on a page, so slots of whole pages suit direct file I/O."""

    def map_pool(self, pool: Pool) -> None:
        """Back a pool with address space; a pool without a limit may grow to all the RAM there is."""
        pool.memory = reserve(slots_nbytes(pool))

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A view of the slot; it holds the mapping by reference, so a pool may be forgotten under living views."""
        pool = slot.pool
        return np.ndarray(shape, dtype, pool.memory, slot.index * pool.slot_nbytes)

    def discard(self, slot: Slot) -> None:
        """Give the memory of a free slot back to the system, as far as it covers whole pages."""
        nbytes = slot.pool.slot_nbytes
        start = -(-slot.index * nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (slot.index + 1) * nbytes // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            slot.pool.memory.madvise(mmap.MADV_DONTNEED, start, stop - start)


def slots_nbytes(pool: Pool) -> int:
    """Bytes of all slots that a pool may ever have."""
    return (pool.limit if pool.limit is not None else total_memory() // pool.slot_nbytes) * pool.slot_nbytes


def reserve(nbytes: int) -> mmap.mmap:
    """Address space for `nbytes`, filled with zeros, without memory until it is touched. TierError if there is none."""
    return reserve_as(mmap.mmap, nbytes)


def reserve_as(make: type[Map], nbytes: int) -> Map:
    """`reserve` as a mapping of the class `make`."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        memory = make(-1, max(nbytes, mmap.PAGESIZE), flags=flags)
    except (OSError, MemoryError) as error:
        raise TierError(
            f"slots of {format_size(nbytes)} in all got no address space from the system ({error}); lower device_memory or "
            "host_memory, or raise the limit of this process (ulimit -v)"
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def spare_memory() -> int:
    """Bytes of RAM that tiles may take where nobody said how many: four fifths of what is available now."""
    return psutil.virtual_memory().available * 4 // 5


def total_memory() -> int:
    """Bytes of RAM in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
