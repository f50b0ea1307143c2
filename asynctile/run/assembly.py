"""The tiers of an engine, put together: a device over RAM over a spill folder, or RAM (as the device) over a spill folder.

Covers runs as all tiers see them, host bytes that go in and out, and the freeing of tiles. What moves when is tier.py and
pipeline.py, how caps are cut is budget.py, the public face is engine.py. Runs on the device's loop, except `open` and `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from asynctile.device.base import Device
from asynctile.errors import TierError
from asynctile.memory.caps import Budget
from asynctile.memory.host_link import Copy, HostLink
from asynctile.memory.spill_link import THREADS, SpillLink
from asynctile.memory.tier import Tier, unfinished
from asynctile.program.handle import Handle
from asynctile.program.operation import READ, WRITE
from asynctile.program.program import Program
from asynctile.run.graphs import Replays
from asynctile.run.host_lane import HostLane
from asynctile.run.lane import Lane
from asynctile.schedule.prefetch import DISK_WINDOW, FAR, LINK_WINDOW, DevicePipeline, HostPipeline, Order, Pipeline
from asynctile.storage.arena import Arena
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT, Demand
from asynctile.storage.residency import Ledger, never_written
from asynctile.storage.spill import SpillTier
from asynctile.streams.lockstep import Turns
from asynctile.streams.run_ahead import Window
from asynctile.streams.stream import StreamEvent

#: After a stall, closing waits this long for each thing that hangs, and leaves it behind.
LAST_PATIENCE_S = 1.0


class Tiers:
    """top: where operations run. host: the tier in RAM, the same one where RAM is the device. spill: below RAM, or None.

    device_memory, host_memory: caps in bytes, None for none. prefetch: depth, 0 for no overlap. host_remedy: how host_memory
    is raised if nobody gave it, for messages.
    """

    def __init__(
        self,
        device: Device,
        device_memory: int | None,
        host_memory: int | None,
        spill: SpillTier | None,
        prefetch: int,
        watchdog: float | None = None,
        host_remedy: str = "",
    ) -> None:
        self.device = device
        self.spill = spill
        self.order = Order()
        self.window = Window(device.streams, watchdog)
        turns = Turns() if prefetch == 0 else None
        page = ALIGNMENT if spill is None else PAGE
        arena = Arena(
            host_memory, evictable=spill is not None, alignment=page, argument="host_memory", remedy=host_remedy
        )
        memory = device.host if device.has_link else device
        below = None if spill is None else SpillLink(spill, memory, device.add_stream("spill", THREADS))
        window = DISK_WINDOW if spill is not None else LINK_WINDOW
        kind = HostPipeline if device.has_link else Pipeline
        host = kind(Ledger(arena, below), self.order, prefetch, window)
        self.host = self.top = Tier(memory, host, below, self.window, turns)
        self.link: HostLink | None = None
        if device.has_link:
            self.link = HostLink(device, self.host)
            grain = device.grain
            arena = Arena(device_memory, evictable=True, alignment=grain.alignment, rigid=grain.rigid)
            ledger = Ledger(arena, self.link)
            self.top = Tier(device, DevicePipeline(ledger, self.order, prefetch), self.link, self.window, turns)
        self.lane = Lane(device, self.top, self.order, self.window, turns)
        self.replays: Replays | None = None
        if self.link is not None:
            self.replays = Replays(device, self.top, self.link, self.lane)
            self.lane.on_host = HostLane(device, self.top, self.host, self.link, self.window, turns).issue
        self.budget = Budget(tuple(self._all()), self.link, spill, self.window)

    def open(self) -> None:
        """Lock the spill folder and start the streams. Blocks."""
        if self.spill is not None:
            self.spill.open()
        self.device.start()

    def close(self) -> None:
        """End the streams, let the memory and the spill folder go. Blocks."""
        patience_s = LAST_PATIENCE_S if self.window.hangs else None
        try:
            self.device.close(patience_s)
        finally:
            for tier in self._all():
                tier.close()
            if self.spill is not None:
                self.spill.close(patience_s)

    async def cut(self, demand: Demand) -> None:
        """Make the tiers serve `demand`. BudgetError before anything moves, if a cap is below what it needs."""
        await self.budget.cut(demand)
        if self.link is not None:
            self.lane.on_use = self.link.used if self.host.arena.divided else None

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

    def next_uses(self, program: Program) -> list[tuple[int, ...]]:
        """The next uses of operands behind each entry, as the tier ranks them that operations run in."""
        return program.next_uses if self.link is None else program.device_uses

    def look_ahead(self) -> Callable[[int], None]:
        """What to call after each entry of a run that has begun: it starts what comes next, on the device first, then below."""
        top, host = self.top.look_ahead, self.host.look_ahead
        if self.link is None or not self.host.arena.divided:
            return top

        def both(index: int) -> None:
            top(index)
            host(index)

        return both

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
        if tile.slot is None and not tile.valid_below:
            raise never_written(tile)
        copy = np.empty(tile.shape, tile.dtype)
        if self.link is None or tile.slot is not None:
            await self._arrived(self.lane.fetch(tile, copy, tile.next_use), tile)
            return copy
        place: Copy = tile.backing
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

    def _all(self) -> Iterator[Tier]:
        """From the top down."""
        yield self.top
        if self.link is not None:
            yield self.host

    async def _arrived(self, event: StreamEvent, tile: Handle) -> None:
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
