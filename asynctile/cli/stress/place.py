"""Where a round runs: devices, caps, prefetch, workers and kind of event loop, drawn at random for a demand.

Covers `EngineSetup` and the engine made from it. storage/arena.py divides caps; the floors here are its floors.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from asynctile import Engine
from asynctile.cli.stress.disturb import COUNT, CountedCoroutine
from asynctile.device import CpuDevice, EmulatedDevice
from asynctile.device.workers import Siblings
from asynctile.loop.thread import Undo, new_loop
from asynctile.runtime import Runtime
from asynctile.share import runtime_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import ALIGNMENT, Demand

__all__ = ["MOST_DEVICES", "EngineSetup", "StressEngine", "draw_place"]

T = TypeVar("T")

#: The most devices of an engine.
MOST_DEVICES = 3
_PREFETCHES = (0, 1, 2, 2, 4, 8)
_WORKERS = (1, 2, 2, 3)
_PLACES = (("cpu", True), ("emulated", False), ("emulated", True))


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """The settings of an engine.

    Sizes are in bytes; None: no cap. devices: how many there are like `device`, each with `device_memory`. update: where a
    training updates its weights; "auto" is not drawn, since it would not repeat.
    """

    device: str
    devices: int = 1
    device_memory: int | None = None
    host_memory: int | None = None
    spill: bool = True
    prefetch: int = 2
    workers: int = 2
    uvloop: bool = True
    update: str = "device"

    @property
    def budget(self) -> int | None:
        """The cap on the memory in which operations run."""
        return self.host_memory if self.device == "cpu" else self.device_memory

    @property
    def name(self) -> str:
        """The name of all devices, as an engine takes it."""
        return self.device if self.devices == 1 else f"{self.device}*{self.devices}"

    @property
    def kind(self) -> str:
        """The devices and the tier below them."""
        return f"{self.name} over a file" if self.spill else self.name

    @property
    def alignment(self) -> int:
        """The alignment of slots in that memory."""
        return PAGE if self.device == "cpu" and self.spill else ALIGNMENT


class CountingRuntime(Runtime):
    """Counts the awaits of a job for the caller that asks for it (COUNT of disturb.py)."""

    async def call(self, job: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        count = COUNT.get()
        return await super().call(job if count is None else CountedCoroutine(job, count), undo)


class StressEngine(Engine):
    """An engine in an `EngineSetup` that counts the awaits of its jobs for a caller who sets COUNT (disturb.py)."""

    _runtime_type = CountingRuntime

    def __init__(self, place: EngineSetup, spill: str | os.PathLike[str], **more: Any) -> None:
        make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop if place.uvloop else asyncio.new_event_loop
        super().__init__(place.name, device_memory=place.device_memory, host_memory=place.host_memory,
                         spill=spill if place.spill else None, prefetch=place.prefetch, make_loop=make_loop, **more)
        # The number of workers follows from the machine and is no option. Here it is drawn.
        siblings, numbers = Siblings(place.devices), range(place.devices)
        self._life.devices = (CpuDevice(place.workers),) if place.device == "cpu" else tuple(
            EmulatedDevice(threads=place.workers, siblings=siblings, number=number) for number in numbers)

    @property
    def has_schedules(self) -> bool:
        """Whether bound schedules use its slots, and places of their own."""
        return bool(runtime_of(self).schedules._bounds)


def draw_place(chance: random.Random, demand: Demand, *, least: Demand | None = None, share: float = 0.5,
               spill: bool | None = None, devices: int = 1) -> EngineSetup:
    """Draw any device and depth, and a budget of each device from the floor of `demand` up to `share` of all its bytes.

    least: another demand whose floor counts too. spill: None: with or without a spill folder; True: with one, and with so
    little RAM that it is needed. devices: the most devices of an engine; a CPU is always one.
    """
    device, has_spill = chance.choice([place for place in _PLACES if spill in (None, place[1])])
    floors = [demand] if least is None else [demand, least]
    paged = demand.rounded(PAGE)
    count = min(devices, chance.randint(1, MOST_DEVICES)) if device != "cpu" else 1
    place = EngineSetup(device=device, devices=count, spill=has_spill, prefetch=chance.choice(_PREFETCHES),
                        workers=chance.choice(_WORKERS), uvloop=chance.random() < 0.5)
    top = paged if device == "cpu" else demand
    rounded = [each.rounded(place.alignment) for each in floors]
    floor = max((each.alone() if device == "cpu" else each).floor_nbytes for each in rounded)
    budget = _between(chance, floor, int(top.resident_nbytes * share))
    if device == "cpu":
        return replace(place, host_memory=budget)
    host: int | None = None
    if has_spill:
        passing = max(each.rounded(PAGE).passing().floor_nbytes for each in floors)
        host = _between(chance, passing, paged.resident_nbytes // (2 if spill else 1))
    elif least is None and chance.random() < 0.5:
        host = demand.resident_nbytes
    return replace(place, device_memory=budget, host_memory=host)


def _between(chance: random.Random, floor: int, most: int) -> int:
    """Draw a size from the floor to `most`; sometimes the floor itself, where tiles must take turns."""
    return floor if chance.random() < 0.15 else chance.randint(floor, max(floor, most))
