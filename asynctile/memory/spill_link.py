"""The link between RAM and a spill folder: file I/O on a stream of its own, several transfers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asynctile.memory.tier import Memory, failed_or_unfinished, unfinished
from asynctile.program.handle import Handle
from asynctile.storage.arena import Slot
from asynctile.storage.blocks import Block
from asynctile.storage.container import ALIGNMENT
from asynctile.storage.demand import align
from asynctile.storage.spill import SpillTier
from asynctile.storage.tile import Tile
from asynctile.streams.stream import Stream, StreamEvent, StreamEvents

#: Transfers in flight at once.
THREADS = 4


class SpillLink:
    """Moves slots of `memory`, whose slots are whole pages, to and from `spill` on `stream`."""

    def __init__(self, spill: SpillTier, memory: Memory, stream: Stream) -> None:
        self.spill = spill
        self.memory = memory
        self.stream = stream

    def take(self, tile: Tile) -> Block:
        return self.spill.take(tile.nbytes, f"tile {tile.name}")

    def give(self, tile: Tile) -> None:
        self.spill.give(tile.backing)

    def read(self, tile: Handle, slot: Slot, after: StreamEvents) -> StreamEvent:
        block: Block = tile.backing
        event = self._enqueue(self.spill.read, tile, slot, failed_or_unfinished(tile.below), after)
        block.guard = (*unfinished(*block.guard), event)
        return event

    def write(self, tile: Handle, slot: Slot, waits: StreamEvents) -> StreamEvent:
        block: Block = tile.backing
        # Also behind reads whose bytes nobody wants any more: their checksum would not match.
        event = self._enqueue(self.spill.write, tile, slot, waits, unfinished(*block.guard))
        block.guard = (event,)
        return event

    def moved_nbytes(self, tile: Handle) -> int:
        return align(tile.nbytes, ALIGNMENT)

    def is_lost(self, tile: Handle) -> bool:
        return tile.below is not None and tile.below.error is not None

    def _enqueue(
        self, work: Callable[..., Any], tile: Handle, slot: Slot, waits: StreamEvents, after: StreamEvents
    ) -> StreamEvent:
        pages = self.memory.array(slot, (self.moved_nbytes(tile),), np.uint8)
        return self.stream.enqueue(waits, work, (tile.backing, pages, tile.name), after=after, is_copy=True, what=tile)
