"""The host tier: RAM below the device, one mapping cut exactly to the size of each tile.

Covers the place of tiles that are not on the device (or that have an older copy here). Which tiles come here is
decided by storage/residency.py. Few sizes occur, so freed blocks wait in a list by size and nothing is lost to
rounding; fresh memory is touched only when it is used.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from asynctile.storage.arena import align
from asynctile.storage.errors import BudgetError
from asynctile.storage.sizes import format_size

#: Linux's MAP_NORESERVE, which Python 3.11's mmap does not name: address space without a promise of memory.
_NORESERVE = 0x4000


def reserve(nbytes: int) -> mmap.mmap:
    """Address space for `nbytes`, filled with zeros, without memory until it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    memory = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=flags)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def total_memory() -> int:
    """Bytes of RAM in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Block:
    """A place in host memory; `array(shape, dtype)` views it. `guard`: what its next owner must wait for."""

    __slots__ = ("tier", "offset", "nbytes", "guard")

    def __init__(self, tier: HostTier, offset: int, nbytes: int) -> None:
        self.tier = tier
        self.offset = offset
        self.nbytes = nbytes
        self.guard: tuple[object, ...] = ()

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.ndarray(shape, dtype, self.tier.memory, self.offset)


class HostTier:
    """RAM for tiles under a cap in bytes (None: the RAM of the machine)."""

    #: What the tier is called in messages, and the argument that raises its cap.
    name = "host memory"

    def __init__(self, cap: int | None) -> None:
        self.cap = cap if cap is not None else total_memory()
        self.memory: mmap.mmap | None = reserve(self.cap)
        self.used_nbytes = 0
        self.peak_nbytes = 0
        self._free: dict[int, list[Block]] = {}
        self._end = 0

    def take(self, nbytes: int, what: str) -> Block:
        """A block of at least `nbytes` for `what`; BudgetError when the cap is reached."""
        nbytes = align(nbytes)
        free = self._free.get(nbytes)
        if free:
            block = free.pop()
        else:
            if self._end + nbytes > self.cap:
                raise BudgetError(
                    f"{what} needs {format_size(nbytes)} of host memory; {format_size(self.cap - self._end)} of "
                    f"{format_size(self.cap)} are free; raise host_memory, or device_memory so that less is kept here",
                    floor=self._end + nbytes,
                )
            block = Block(self, self._end, nbytes)
            self._end += nbytes
        self.used_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)
        return block

    def give(self, block: Block) -> None:
        self.used_nbytes -= block.nbytes
        self._free.setdefault(block.nbytes, []).append(block)

    def close(self) -> None:
        """Let the memory go, as soon as the last view of it is gone.

        Views hold the mapping by reference, not by the buffer protocol: closing it would pull it from under them.
        """
        self._free.clear()
        self.memory = None
