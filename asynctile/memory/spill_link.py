"""The link between RAM and a spill folder: file I/O on a stream of its own, with several transfers in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asynctile.memory.contracts import Memory
from asynctile.storage.blocks import Block
from asynctile.storage.container import ALIGNMENT
from asynctile.storage.demand import align
from asynctile.storage.residency import Residency
from asynctile.storage.slot import Slot
from asynctile.storage.spill import SpillTier
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents, failed_or_unfinished, unfinished
from asynctile.streams.stream import Stream

#: Transfers in flight at once.
THREADS = 4


class SpillLink:
    """Transfers of slots of `memory` to and from `spill`, on `stream`. The slots are whole pages."""

    def __init__(self, spill: SpillTier, memory: Memory, stream: Stream) -> None:
        self.spill = spill
        self.memory = memory
        self.stream = stream

    def take(self, residency: Residency) -> Block:
        return self.spill.take(residency.tile.nbytes, f"tile {residency.name}")

    def give(self, residency: Residency) -> None:
        self.spill.give(residency.backing)

    def read(self, residency: Residency, slot: Slot, after: StreamEvents) -> StreamEvent:
        block: Block = residency.backing
        event = self._enqueue(self.spill.read, residency, slot, failed_or_unfinished(residency.saved), after)
        block.guard = (*unfinished(*block.guard), event)
        return event

    def write(self, residency: Residency, slot: Slot, waits: StreamEvents) -> StreamEvent:
        block: Block = residency.backing
        # Also after reads whose bytes nobody wants any more: their checksums would not match.
        event = self._enqueue(self.spill.write, residency, slot, waits, unfinished(*block.guard))
        block.guard = (event,)
        return event

    def moved_nbytes(self, residency: Residency) -> int:
        return self.pages_nbytes(residency.tile)

    def pages_nbytes(self, tile: Tile) -> int:
        """Return the size of a tile in whole pages, in bytes."""
        return align(tile.nbytes, ALIGNMENT)

    def pages(self, slot: Slot, tile: Tile) -> np.ndarray:
        """Return the bytes of a tile's slot as they move, (pages_nbytes,) uint8."""
        array: np.ndarray = self.memory.array(slot, (self.pages_nbytes(tile),), np.uint8)
        return array

    def carry(
        self, tile: Tile, block: Block, pages: np.ndarray, writes: bool,
        told: Callable[[BaseException | None], None] = lambda error: None, after: StreamEvents = (), order: int | None = None,
    ) -> StreamEvent:  # fmt: skip
        """Enqueue a transfer of a tile that waits only for `after`; return its event.

        block: its block of the spill file. pages: its memory. writes: to the file, otherwise from the file. told: called by
        the thread of the transfer, with its error or None. order: as in Stream.enqueue.
        """
        args = told, self.spill, block, pages, tile.name
        return self.stream.enqueue((), write if writes else read, args, after=after, is_copy=True, what=tile, order=order)

    def is_lost(self, residency: Residency) -> bool:
        return residency.saved is not None and residency.saved.error is not None

    def _enqueue(
        self, work: Callable[..., Any], residency: Residency, slot: Slot, waits: StreamEvents, after: StreamEvents
    ) -> StreamEvent:
        args = residency.backing, self.pages(slot, residency.tile), residency.name
        return self.stream.enqueue(waits, work, args, after=after, is_copy=True, what=residency.tile)


def read(told: Callable[[BaseException | None], None], spill: SpillTier, *args: Any) -> None:
    """Read a tile and tell how it went. A trace shows this function's name."""
    _tell(told, spill.read, *args)


def write(told: Callable[[BaseException | None], None], spill: SpillTier, *args: Any) -> None:
    """Write a tile and tell how it went. A trace shows this function's name."""
    _tell(told, spill.write, *args)


def _tell(told: Callable[[BaseException | None], None], work: Callable[..., Any], *args: Any) -> None:
    try:
        work(*args)
    except BaseException as error:
        told(error)
        raise
    told(None)
