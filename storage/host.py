"""The host tier: RAM below the device, one mapping cut exactly to the size of each tile.

Covers the place of tiles that are not on the device (or that have an older copy here). Which tiles come here is
decided by storage/residency.py. Few sizes occur, so freed blocks wait in a list by size; when another program wants other
sizes they are joined and cut anew. Fresh memory is touched only when it is used.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
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
        self._holes: list[Block] = []
        self._end = 0

    def reserve(self, counts: Mapping[int, int]) -> None:
        """Make sure that so many blocks of each size can be taken; BudgetError if they cannot. Nothing may be in flight."""
        counts = {align(size): count - len(self._free.get(align(size), ())) for size, count in counts.items()}
        counts = {size: count for size, count in counts.items() if count > 0}
        wanted = sum(size * count for size, count in counts.items())
        if self._end + wanted > self.cap:
            self._merge()
        for size in sorted(counts, reverse=True):
            blocks = [self._new(size) for _ in range(counts[size])]
            self._free.setdefault(size, []).extend(block for block in blocks if block is not None)
            if None in blocks:
                needed = self.used_nbytes + wanted
                raise BudgetError(
                    f"host_memory of {format_size(self.cap)} is below the floor of {format_size(needed)} ({needed} bytes): "
                    f"{format_size(self.used_nbytes)} are in use, and every tile that is alive at once must find a place "
                    "below the device; raise host_memory",
                    floor=needed,
                )

    def take(self, nbytes: int, what: str) -> Block:
        """A block of at least `nbytes` for `what`; BudgetError when the cap is reached."""
        nbytes = align(nbytes)
        free = self._free.get(nbytes)
        block = free.pop() if free else self._new(nbytes)
        if block is None:
            raise BudgetError(
                f"{what} needs {format_size(nbytes)} of host memory; {format_size(self.cap - self.used_nbytes)} of "
                f"{format_size(self.cap)} are free, not all in one piece; raise host_memory",
                floor=self.used_nbytes + nbytes,
            )
        self.used_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)
        return block

    def _new(self, nbytes: int) -> Block | None:
        """A block from a hole or from memory never used."""
        for hole in self._holes:
            if hole.nbytes >= nbytes:
                block = Block(self, hole.offset, nbytes)
                hole.offset += nbytes
                hole.nbytes -= nbytes
                return block
        if self._end + nbytes > self.cap:
            return None
        block = Block(self, self._end, nbytes)
        self._end += nbytes
        return block

    def _merge(self) -> None:
        """Make holes of all free blocks, neighbours joined, so that other sizes can be cut from them.

        Nothing is in flight then, so there is nothing to guard.
        """
        free = [block for blocks in self._free.values() for block in blocks]
        self._free.clear()
        holes: list[Block] = []
        for block in sorted([*free, *(hole for hole in self._holes if hole.nbytes)], key=lambda block: block.offset):
            if holes and holes[-1].offset + holes[-1].nbytes == block.offset:
                holes[-1].nbytes += block.nbytes
            else:
                holes.append(Block(self, block.offset, block.nbytes))
        self._holes = holes

    def give(self, block: Block) -> None:
        self.used_nbytes -= block.nbytes
        self._free.setdefault(block.nbytes, []).append(block)

    def close(self) -> None:
        """Let the memory go, as soon as the last view of it is gone.

        Views hold the mapping by reference, not by the buffer protocol: closing it would pull it from under them.
        """
        self._free.clear()
        self.memory = None
