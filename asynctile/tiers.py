"""The tiers of an engine, put together: a device over RAM over a spill folder, or RAM (as the device) over a spill folder.

Covers how caps are cut for a demand, host bytes that go in and out, and the freeing of tiles. What moves when is tier.py and
pipeline.py; the public face is engine.py. Runs on the device's loop, except `open` and `close`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np
import psutil

from asynctile.device.base import Device
from asynctile.errors import AsynctileError, TierError
from asynctile.handle import Handle
from asynctile.host_link import Copy, HostLink
from asynctile.lane import Lane
from asynctile.operation import READ, WRITE
from asynctile.pipeline import DISK_WINDOW, FAR, LINK_WINDOW, HostPipeline, Order, Pipeline
from asynctile.program import Program
from asynctile.spill_link import THREADS, SpillLink
from asynctile.storage.arena import Arena
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT, Demand, align
from asynctile.storage.residency import Ledger
from asynctile.storage.spill import SpillTier
from asynctile.stream import Event
from asynctile.tier import Tier, unfinished
from asynctile.turns import Turns
from asynctile.window import Window

#: After a stall, closing waits this long for each thing that hangs, and leaves it behind.
LAST_PATIENCE_S = 1.0


class Tiers:
    """top: where operations run. host: the tier in RAM, the same one where RAM is the device. spill: below RAM, or None.

    device_memory, host_memory: caps in bytes, None for none. prefetch: depth, 0 for no overlap.
    """

    def __init__(
        self,
        device: Device,
        device_memory: int | None,
        host_memory: int | None,
        spill: SpillTier | None,
        prefetch: int,
        watchdog: float | None = None,
    ) -> None:
        self.device = device
        self.spill = spill
        self.order = Order()
        self.window = Window(device.streams, watchdog)
        self._returned = asyncio.Event()
        #: what the spill folder has places for
        self._reserved: Demand | None = None
        turns = Turns() if prefetch == 0 else None
        page = ALIGNMENT if spill is None else PAGE
        arena = Arena(host_memory, evictable=spill is not None, alignment=page, argument="host_memory")
        memory = device.host if device.has_link else device
        below = None if spill is None else SpillLink(spill, memory, device.add_stream("spill", THREADS))
        window = DISK_WINDOW if spill is not None else LINK_WINDOW
        kind = HostPipeline if device.has_link else Pipeline
        host = kind(Ledger(arena, below), self.order, prefetch, window)
        self.host = self.top = Tier(memory, host, below, self.window, turns)
        self.link: HostLink | None = None
        if device.has_link:
            self.link = HostLink(device, self.host)
            ledger = Ledger(Arena(device_memory, evictable=True), self.link)
            self.top = Tier(device, Pipeline(ledger, self.order, prefetch), self.link, self.window, turns)
        self.lane = Lane(device, self.top, self.order, self.window, turns)

    def open(self) -> None:
        """Lock the spill folder and start the streams. Blocks."""
        if self.spill is not None:
            self.spill.open()
        self.device.start()

    def close(self) -> None:
        """End the streams, let the memory and the spill folder go. Blocks."""
        patience_s = None if self.window.stalled is None else LAST_PATIENCE_S
        try:
            self.device.close(patience_s)
        finally:
            for tier in self._all():
                tier.close()
            if self.spill is not None:
                self.spill.close(patience_s)

    def begin(self, program: Program, demand: Demand) -> None:
        """A run of `program` begins: every tier learns what it uses first."""
        self.order.begin()
        for tier in self._all():
            tier.pipeline.begin(program, demand.rounded(tier.arena.alignment))

    def end(self, program: Program, *, broken_off: bool = False) -> None:
        """The run is over."""
        self.order.end(len(program))
        for tier in self._all():
            tier.pipeline.forget() if broken_off else tier.pipeline.end()

    def look_ahead(self) -> Callable[[int], None]:
        """What to call after each entry of a run that has begun: it starts what comes next, on the device first, then below."""
        top, host = self.top.look_ahead, self.host.look_ahead
        if self.link is None or not self.host.arena.divided:
            return top

        def both(index: int) -> None:
            top(index)
            host(index)

        return both

    def check_floor(self, floor: Demand) -> None:
        """BudgetError if a tier that tiles can leave has a cap below what `floor` needs of it."""
        for tier in self._all():
            if tier.arena.cap is not None and tier.arena.evictable:
                self._demand(tier, floor).check(tier.arena.cap, tier.arena.argument)

    async def cut(self, demand: Demand) -> None:
        """Make the tiers serve `demand`. BudgetError before anything moves, if a cap is below what it needs."""
        await self.window.settle()
        await self._called_back(demand)
        wanted = {tier: self._demand(tier, demand) for tier in self._all()}
        foreign = {tier: self._foreign(tier, demand) for tier in self._all()}
        for tier in self._all():
            tier.arena.check(wanted[tier], foreign[tier])
        self._reserve_spill(demand, wanted[self.host], foreign[self.host])
        for tier in self._all():
            if tier.arena.fits(wanted[tier], foreign[tier]):
                continue
            if tier.arena.must_be_empty(wanted[tier], foreign[tier]):
                tier.clear()
                await self.window.drain()
            tier.cut(wanted[tier], foreign[tier])
        if self.link is not None:
            self.lane.on_use = self.link.used if self.host.arena.divided else None

    async def fill(self, tile: Handle, value: np.ndarray) -> None:
        """Put host bytes in a tile that no work in flight uses. Cancelled, it leaves the tile as it was."""
        if value.shape != tile.shape:
            raise ValueError(f"{tile.name} takes an array of shape {tile.shape}, not {value.shape}")
        if not np.can_cast(value.dtype, tile.dtype, "same_kind"):
            raise TypeError(f"{tile.name} takes an array of {tile.dtype}, not {value.dtype}")
        place, fresh = self._host_place(tile)
        try:
            for event in (*place.reads, *unfinished(place.written)):  # also what still loads older bytes into the slot
                await self.window.settled(event)
        except BaseException:
            if fresh:
                self.host.drop(place)
            raise
        np.copyto(place.array, value)
        self._filled(tile, place)

    def claim(self, tile: Handle) -> None:
        """`fill` without bytes, for a run without them."""
        self._filled(tile, self._host_place(tile)[0])

    def _host_place(self, tile: Handle) -> tuple[Handle, bool]:
        """What stands, or is to stand, for `tile` in RAM, with a slot, and whether it got that slot now."""
        place = tile
        if self.link is not None:
            if tile.backing is None:
                tile.backing = self.link.take(tile)
            place = tile.backing
        if place.slot is not None:
            return place, False
        self.host.admit((place,), WRITE)
        return place, True

    def _filled(self, tile: Handle, place: Handle) -> None:
        """The host has written `place`: nothing else of the tile is new."""
        self.host.writes(place, None, FAR - self.order.position)
        if self.link is not None:
            if tile.slot is not None:
                self.top.drop(tile)
            tile.valid_below, tile.below = True, None
        self.lane.announce((tile,))

    async def read(self, tile: Handle) -> np.ndarray:
        """A copy of a tile's newest bytes; nothing may be in flight."""
        copy = np.empty(tile.shape, tile.dtype)
        if self.link is None or tile.slot is not None:
            if tile.slot is None and not tile.valid_below:
                raise AsynctileError(f"tile {tile.name} was never written: store or compute it before reading it")
            await self._arrived(self.lane.fetch(tile, copy, tile.next_use), tile)
            return copy
        place: Copy | None = tile.backing
        if place is None or not tile.valid_below:
            raise AsynctileError(f"tile {tile.name} was never written: store or compute it before reading it")
        if place.slot is None:
            self.host.admit((place,), READ)
            self.host.ledger.used(place, tile.next_use, False)
        if place.written is not None:
            await self._arrived(place.written, tile)
        np.copyto(copy, place.array)
        return copy

    def release(self, tiles: Iterable[Handle]) -> None:
        """Free tiles that will not be used again."""
        for tile in tiles:
            self.top.release(tile)

    def borrow(self, nbytes: int) -> bool:
        """Set RAM aside for the caller's own use, if nothing here will need it."""
        if self.host.arena.cap is None and nbytes > psutil.virtual_memory().available // 2:
            return False
        if not self.host.arena.lend(nbytes):
            return False
        self.host.ledger.peak_nbytes = max(self.host.ledger.peak_nbytes, self.host.arena.held_nbytes)
        return True

    def give_back(self, nbytes: int) -> None:
        self.host.arena.lent_nbytes -= nbytes
        self._returned.set()

    def _all(self) -> Iterator[Tier]:
        """From the top down."""
        yield self.top
        if self.link is not None:
            yield self.host

    def _demand(self, tier: Tier, demand: Demand) -> Demand:
        rounded = demand.rounded(tier.arena.alignment)
        return rounded.passing() if tier is not self.top else rounded

    def _foreign(self, tier: Tier, demand: Demand) -> Counter[int]:
        """Tiles by size that `demand` does not count and that stand in `tier`, or above it and may have to come down."""
        alignment, found = tier.arena.alignment, self._owners(tier)
        if tier is not self.top:
            found |= self._owners(self.top)
        return Counter(align(tile.nbytes, alignment) for tile in found if tile not in demand.standing)

    def _owners(self, tier: Tier) -> set[Handle]:
        """The tiles of programs that stand in `tier`."""
        return {tile.owner if isinstance(tile, Copy) else cast(Handle, tile) for tile in tier.ledger.resident}

    async def _called_back(self, demand: Demand) -> None:
        """Wait for lent RAM if it is wanted now: whoever borrowed it is about to finish a save."""
        arena = self.host.arena
        while arena.lent_nbytes and not arena.keeps_all(self._demand(self.host, demand), self._foreign(self.host, demand)):
            self._returned.clear()
            await self._returned.wait()

    def _reserve_spill(self, demand: Demand, wanted: Demand, foreign: Counter[int]) -> None:
        """Make sure that whatever may have to leave RAM finds a place in the folder."""
        if self.spill is None or demand is self._reserved:
            return
        self._reserved = None
        if self.host.arena.keeps_all(wanted, foreign):
            return
        counts = Counter(wanted.exact)
        for tile in cast(frozenset[Handle], demand.standing):
            counts[align(tile.nbytes, PAGE)] -= self._has_block(tile)
        for tile in self._owners(self.top) | self._owners(self.host):
            if tile not in demand.standing:
                counts[align(tile.nbytes, PAGE)] += not self._has_block(tile)
        self.spill.reserve(counts)
        self._reserved = demand

    def _has_block(self, tile: Handle) -> bool:
        """Whether the tile has a place in the spill file."""
        place = tile if self.link is None else tile.backing
        return place is not None and place.backing is not None

    async def _arrived(self, event: Event, tile: Handle) -> None:
        """Wait for bytes of `tile`; if they did not come, forget what is not whole, so that a later try starts afresh."""
        try:
            await self.window.landed(event)
        except Exception as error:
            await self.window.settle()
            if self.window.stalled is None:
                self.top.rescue(tile)
            if isinstance(error, TierError):
                raise
            raise TierError(f"tile {tile.name} cannot be read, since the work that wrote it failed: {error}") from error
        await self.window.settle()
