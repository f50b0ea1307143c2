"""Transfers of a schedule between RAM and the spill file or another node, each when it is due; and the blocks in the file.

The threads of the spill folder's stream carry them out, with retries and checksums (asynctile/memory/spill_link.py);
the schedule says when. Of the transfers that may begin, the earliest in the schedule goes first. Many write-backs become
ready at once, and a read behind all of them would leave the cores without work.

Persistent tiles keep the blocks that they have in their tier. Blocks of temporaries belong to the schedule, from when it
is bound until it is left. Tiles for other nodes go through the exchange (asynctile/memory/node_link.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from asynctile.memory.spill_link import SpillLink
from asynctile.memory.tiers import Tiers
from asynctile.nodes.boxes import Track
from asynctile.program.operation import READ
from asynctile.program.program import Shipment
from asynctile.schedule.schedule import DISK, Kind, Place, Schedule
from asynctile.storage.blocks import Block
from asynctile.storage.container import aligned_array
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents, unfinished


class Transfers:
    """The transfers of `schedule` on `tiers`. slots: slot of each place. BudgetError if the file has too few blocks."""

    def __init__(self, schedule: Schedule, tiers: Tiers, slots: Mapping[Place, Slot]) -> None:
        self._schedule = schedule
        self._tiers = tiers
        self._host = tiers.host
        self._slots = slots
        #: blocks of temporaries, which nobody else knows
        self._own: dict[Place, Block] = {}
        #: transfers from and to the file, with their numbers; the order of the first of this run on the stream of transfers
        self._numbers: dict[int, int] = {}
        self._first = 0
        self._counts = _counts(schedule)
        #: with other nodes; None if no tile of the schedule goes there or comes from there
        self.exchange = tiers.nodes.exchange if tiers.nodes is not None and any(map(any, self._counts.values())) else None
        try:
            for index, entry in enumerate(schedule.entries):
                if entry.kind is Kind.TRANSFER and entry.node is None:
                    self._numbers[index] = len(self._numbers)
                    self._take(entry.what, next(place for place in entry.places if place.tier == DISK))
        except BaseException:
            self.give_back()
            raise

    def begin_run(self) -> None:
        """Order the transfers of a new run behind everything that their stream and other nodes have been given.

        Those of the last run to and from other nodes must be over.
        """
        if isinstance(self._host.link, SpillLink):
            self._first = self._host.link.stream.enqueued
        if self.exchange is not None:
            for track, counts in self._counts.items():
                self.exchange.begin(*counts, track)

    def begin(self, entry: int, told: Callable[[BaseException | None], None], after: StreamEvents = ()) -> StreamEvent:
        """Enqueue the transfer of an entry behind `after`; return its event.

        told: called by the thread of the transfer, with its error or None.
        """
        scheduled = self._schedule.entries[entry]
        tile, (to, source), node = scheduled.what, scheduled.places, scheduled.node
        assert isinstance(tile, Tile)
        if node is not None:
            assert self._tiers.nodes is not None, "a program of one of several nodes needs an exchange"
            away, here = (to, source) if to.tier < 0 else (source, to)
            array = self._host.memory.array(self._slots[here], (tile.nbytes,), np.uint8)
            return self._tiers.nodes.carry(tile, node, away.index, array, away is to, told, after)
        below, here = (to, source) if to.tier == DISK else (source, to)
        block: Block = self._host.of(tile).backing if tile.persistent else self._own[below]
        pages = self._link.pages(self._slots[here], tile)

        def over(error: BaseException | None) -> None:
            if error is not None and here is to:
                pages[:] = 0  # graphs cannot skip the readers, and as an index, zero is always in range
            told(error)

        return self._link.carry(tile, block, pages, to.tier == DISK, over, after, self._first + self._numbers[entry])

    def fill(self, tile: Tile, value: np.ndarray) -> StreamEvent:
        """Write a value to the place of an input in the spill file; return the event of the write."""
        pages = aligned_array(self._link.pages_nbytes(tile))
        pages[: tile.nbytes].view(tile.dtype).reshape(tile.shape)[...] = value
        block: Block = self._host.of(tile).backing
        event = self._link.carry(tile, block, pages, True, after=unfinished(*block.guard))  # after a write that was given up
        block.guard = (event,)
        self._host.written_nbytes += pages.nbytes
        self._host.run_ahead.add(event, pages.nbytes)
        return event

    def give_back(self) -> None:
        """Free the blocks of temporaries. Nothing may be under way."""
        for block in self._own.values():
            self._link.spill.give(block)
        self._own.clear()

    @property
    def _link(self) -> SpillLink:
        link = self._host.link
        assert isinstance(link, SpillLink)
        return link

    def _take(self, tile: object, place: Place) -> None:
        assert isinstance(tile, Tile)
        residency = self._host.of(tile)
        if not tile.persistent:
            if place not in self._own:
                self._own[place] = self._link.spill.take(place.nbytes, f"tile {tile.name}")
            return
        if residency.backing is None:
            residency.backing = self._link.take(residency)
        self._tiers.copies.place(tile)  # so that the block is freed with the tile


def _counts(schedule: Schedule) -> dict[Track, tuple[Counter[int], Counter[int]]]:
    """Return how many transfers of a run go to each node, and how many come from it, by track."""
    found = {track: (Counter[int](), Counter[int]()) for track in Track}
    for entry in schedule.program.entries:
        if isinstance(entry, Shipment):
            sends, receives = found[Track(entry.tile.persistent)]
            (sends if entry.access == READ else receives)[entry.node] += 1
    return found
