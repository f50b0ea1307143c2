"""The tiers of a share: devices over RAM, RAM over a file, or RAM alone, each under its part of the caps.

This module puts them together; nothing moves here. Operations run over them in asynctile/launch/assembly.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from asynctile.device.base import Device, streams_of
from asynctile.events import REPAIR, RETRY, Fault
from asynctile.hub import UNHEARD, Tell
from asynctile.memory.caps import Caps
from asynctile.memory.copies import Copies
from asynctile.memory.host_link import HostLink
from asynctile.memory.node_link import NodeLink
from asynctile.memory.spill_link import SpillLink
from asynctile.memory.tier import Tier
from asynctile.program.grain import Grain
from asynctile.schedule.pace import Pace, pace_of
from asynctile.schedule.rates import CORES, Rates
from asynctile.storage.arena import Arena
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT
from asynctile.storage.ledger import Ledger
from asynctile.storage.spill import SpillTier
from asynctile.streams.event import Runner, TracedRunner
from asynctile.streams.gate import Gate
from asynctile.streams.run_ahead import RUN_AHEAD_OPERATIONS, RunAhead
from asynctile.streams.stream import Stream

#: The first rank; large enough for the life of any engine.
FAR = 1 << 60


class Playing(Runner, Protocol):
    """A runner that plays schedules, beside the device's streams (asynctile/execute).

    stall_s: seconds in which it waited only for copies.
    """

    @property
    def stall_s(self) -> float: ...

    def hold(self, operations: bool, copies: bool) -> None: ...

    def has_work(self, copies: bool) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """The limits of a share's tiers.

    device_memory, host_memory: caps in bytes on each device and on RAM; None for no cap.
    prefetch: depth of prefetching; 0 for no overlap.
    watchdog: seconds of patience; None for no end.
    host_remedy: how to raise host_memory if nobody gave it, for messages.
    rates: rates of the device and its host.
    """

    device_memory: int | None = None
    host_memory: int | None = None
    prefetch: int = 2
    watchdog: float | None = None
    host_remedy: str = ""
    rates: Rates = CORES


def arenas_of(options: TierOptions, grain: Grain, *, has_link: bool, spills: bool) -> tuple[Arena, ...]:
    """Return the arenas of a device with this grain, from the top down.

    has_link: the device has memory above RAM. spills: a disk is below RAM.
    """
    ram = arena_in_ram(options, spills=spills)
    return (arena_above_ram(options, grain), ram) if has_link else (ram,)


def arena_in_ram(options: TierOptions, *, spills: bool) -> Arena:
    """Return the arena in RAM. spills: a disk is below it."""
    return Arena(
        options.host_memory, evictable=spills, alignment=PAGE if spills else ALIGNMENT, argument="host_memory",
        remedy=options.host_remedy,
    )  # fmt: skip


def arena_above_ram(options: TierOptions, grain: Grain) -> Arena:
    """Return the arena of a device with this grain, which has memory of its own."""
    return Arena(options.device_memory, evictable=True, alignment=grain.alignment, rigid=grain.rigid)


class Tiers:
    """The tiers of one share, and what is shared by everything that runs over them.

    devices: the engine's devices, which are alike. device: the first one, on which single operations run.
    tops: tiers in which operations run, one for each device. top: that of the first device.
    host: tier in RAM; the same as `top` where RAM is the device.
    spill: spill folder below RAM, or None. `transfers` is its stream.
    link: link between `top` and `host`; None where they are one.
    copies: of tiles, over all devices.
    nodes: link to other nodes; None where one node trains alone.
    caps: how the tiers are cut.
    rank: of a tile used outside a schedule now, less after each launch: what was used late is assumed to be used soon.
    run_ahead: work that was enqueued on the devices.
    player: runner that plays schedules over these tiers; None before the first.
    gate: whether work over these tiers may begin.
    rates: rates by which decisions are made.
    beside: all tiers of the engine, including these, which take turns by their gates.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        spill: SpillTier | None,
        transfers: Stream | None,
        options: TierOptions,
        tell: Tell = UNHEARD,
    ) -> None:
        self.devices = tuple(devices)
        self.device = device = devices[0]
        self.spill = spill
        self.prefetch = options.prefetch
        self.rates = options.rates
        self.rank = FAR
        self.player: Playing | None = None
        self.gate = Gate()
        self.beside: Sequence[Tiers] = (self,)
        self.run_ahead = RunAhead(self.runners, options.watchdog, tell, self._most_ahead)
        memory: Any = device.host if device.has_link else device
        below = None if spill is None or transfers is None else SpillLink(spill, memory, transfers)
        self.host = Tier(memory, Ledger(arena_in_ram(options, spills=spill is not None), below), below, self.run_ahead)
        links = [HostLink(one, self.host) for one in devices] if device.has_link else []
        above = [Tier(one.device, Ledger(arena_above_ram(options, device.grain), one), one, self.run_ahead) for one in links]
        self.tops = tuple(above) or (self.host,)
        self.top, self.link = self.tops[0], links[0] if links else None
        self._by_number = (self.top, self.host, *above[1:]) if links else (self.host,)
        self.copies = Copies(self.tops, self.host)
        self.nodes: NodeLink | None = None
        if spill is not None:
            spill.mended = partial(_mended, tell)
        self.caps = Caps(self.tops, self.host, spill, self.run_ahead)

    def runners(self) -> list[Runner]:
        """Return every runner that the share's work may run on or wait for: players of shares that have the turn, too."""
        return [*self.streams(), *(tiers.player for tiers in self.beside if tiers.player is not None)]

    def streams(self) -> list[TracedRunner]:
        """Return the streams of all devices."""
        return streams_of(self.devices)

    @property
    def count_of_nodes(self) -> int:
        """How many nodes train together; 1 for one alone."""
        return 1 if self.nodes is None else self.nodes.exchange.nodes

    @property
    def pace(self) -> Pace:
        """The part of the rates that concerns the tier in which operations run."""
        return pace_of(self.rates, has_link=self.link is not None)

    @property
    def is_shared(self) -> bool:
        """Whether the engine has other shares, with which this one takes turns."""
        return len(self.beside) > 1

    def _most_ahead(self) -> int:
        """Return how many operations the host may be ahead of the devices: few if other shares may want them at any moment."""
        return RUN_AHEAD_OPERATIONS if self.is_shared else self.device.grain.run_ahead * len(self.devices)

    def from_the_top(self) -> tuple[Tier, ...]:
        """Return every tier once, by its number: the first device, RAM, then the other devices (schedule/schedule.py)."""
        return self._by_number

    def close(self) -> None:
        """Drop all views of memory, which is about to go."""
        for tier in self.from_the_top():
            tier.close()


def _mended(tell: Tell, text: str, was_damaged: bool) -> None:
    """Report a transfer that went well after all. Called by the thread that moved the tile."""
    tell(Fault, kind=REPAIR if was_damaged else RETRY, text=text)
