"""The tiers of a share of an engine: the device over RAM, RAM over a file, or RAM alone, each under its part of the caps.

Puts them together; nothing moves here. What runs over them is asynctile/run/assembly.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from asynctile.device.base import Device
from asynctile.events import REPAIR, RETRY, Fault
from asynctile.hub import UNHEARD, Tell
from asynctile.memory.caps import Caps
from asynctile.memory.host_link import HostLink
from asynctile.memory.spill_link import SpillLink
from asynctile.memory.tier import Tier
from asynctile.program.grain import Grain
from asynctile.schedule.pace import Pace, pace_of
from asynctile.schedule.positions import Positions
from asynctile.schedule.rates import CORES, Rates
from asynctile.storage.arena import Arena
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT
from asynctile.storage.ledger import Ledger
from asynctile.storage.spill import SpillTier
from asynctile.streams.event import Runner
from asynctile.streams.gate import Gate
from asynctile.streams.run_ahead import RUN_AHEAD_OPERATIONS, RunAhead
from asynctile.streams.stream import Stream


class Playing(Runner, Protocol):
    """A runner beside the device's streams (asynctile/play/player.py). stall_s: seconds in which it only waited for copies."""

    @property
    def stall_s(self) -> float: ...

    def hold(self, operations: bool, copies: bool) -> None: ...

    def has_work(self, copies: bool) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """What tiers may take: caps in bytes on the device and on RAM, None for none. prefetch: depth, 0 for no overlap.

    watchdog: seconds of patience, None for no end. host_remedy: how host_memory is raised if nobody gave it, for messages.
    rates: of the device and its host.
    """

    device_memory: int | None = None
    host_memory: int | None = None
    prefetch: int = 2
    watchdog: float | None = None
    host_remedy: str = ""
    rates: Rates = CORES


def arenas_of(options: TierOptions, grain: Grain, *, has_link: bool, spills: bool) -> tuple[Arena, ...]:
    """The arenas of a device with this grain, from the top down. spills: whether there is a disk below RAM."""
    ram = Arena(
        options.host_memory, evictable=spills, alignment=PAGE if spills else ALIGNMENT, argument="host_memory",
        remedy=options.host_remedy,
    )  # fmt: skip
    if not has_link:
        return (ram,)
    return Arena(options.device_memory, evictable=True, alignment=grain.alignment, rigid=grain.rigid), ram


class Tiers:
    """top: where operations run. host: the tier in RAM, the same one where RAM is the device. spill: below RAM, or None.

    transfers: the stream of spill's.
    link: between the two, None where they are one. caps: how they are cut. positions: of what runs over them, in its order.
    run_ahead: of what was enqueued on the device. player: who runs over them what is not enqueued there, None before the first.
    gate: whether work over them may begin. rates: by which is decided.
    beside: all tiers of the engine, these included, which take turns by their gates.
    """

    def __init__(
        self,
        device: Device,
        spill: SpillTier | None,
        transfers: Stream | None,
        options: TierOptions,
        run_ahead: RunAhead | None = None,
        tell: Tell = UNHEARD,
    ) -> None:
        self.device = device
        self.spill = spill
        self.prefetch = options.prefetch
        self.rates = options.rates
        self.positions = Positions()
        self.player: Playing | None = None
        self.gate = Gate()
        self.beside: Sequence[Tiers] = (self,)
        if run_ahead is None:
            run_ahead = RunAhead(self.runners, options.watchdog, tell, self._most_ahead)
        self.run_ahead = run_ahead
        *above, arena = arenas_of(options, device.grain, has_link=device.has_link, spills=spill is not None)
        memory: Any = device.host if device.has_link else device
        below = None if spill is None or transfers is None else SpillLink(spill, memory, transfers)
        self.host = self.top = Tier(memory, Ledger(arena, below), below, self.run_ahead)
        self.link: HostLink | None = None
        for arena in above:
            self.link = HostLink(device, self.host)
            self.top = Tier(device, Ledger(arena, self.link), self.link, self.run_ahead)
        if spill is not None:
            spill.mended = partial(_mended, tell)
        self.caps = Caps(self.from_the_top(), self.link, spill, self.run_ahead)

    def runners(self) -> list[Runner]:
        """All that its work may run on, or wait for: where others have the turn, theirs."""
        return [*self.device.streams(), *(tiers.player for tiers in self.beside if tiers.player is not None)]

    @property
    def pace(self) -> Pace:
        """What of the rates concerns the tier that operations run in."""
        return pace_of(self.rates, has_link=self.link is not None)

    @property
    def is_shared(self) -> bool:
        """Whether the engine has others, with which these take turns."""
        return len(self.beside) > 1

    def _most_ahead(self) -> int:
        """How many operations the host may be ahead of the device: few where others may want it at any moment."""
        return RUN_AHEAD_OPERATIONS if self.is_shared else self.device.grain.run_ahead

    def from_the_top(self) -> tuple[Tier, ...]:
        """Every tier once, the one below behind the one above."""
        return (self.top,) if self.link is None else (self.top, self.host)

    def close(self) -> None:
        """The memory is about to go."""
        for tier in self.from_the_top():
            tier.close()


def _mended(tell: Tell, text: str, was_damaged: bool) -> None:
    """From the thread that moved a tile."""
    tell(Fault, kind=REPAIR if was_damaged else RETRY, text=text)
