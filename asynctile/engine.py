"""The engine: one device, its tiers and its loop, opened and closed as one.

What is done on an engine, and on what it lends of itself, is share.py's; its traces are traced.py's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from asynctile.device import open_device
from asynctile.device.base import Report
from asynctile.errors import BudgetError
from asynctile.events import Opened
from asynctile.hub import ENGINE, LIMIT, Events, Tell
from asynctile.lent import Lending, LentShare
from asynctile.lifetime import Lifetime
from asynctile.loop.files import THREADS
from asynctile.loop.thread import new_loop, under_shield
from asynctile.loop.turns import Turn
from asynctile.measure.known import machine_rates
from asynctile.memory.spill_link import THREADS as TRANSFERS
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.schedule.rates import Rates, assumed
from asynctile.share import Share
from asynctile.storage.container import RawFile
from asynctile.storage.host import HostMemory
from asynctile.storage.input import shown
from asynctile.storage.limits import spare_address_space, tightest
from asynctile.storage.region import SpillRegion
from asynctile.storage.sizes import parse_size
from asynctile.storage.spill import SpillTier
from asynctile.traced import Traced

logger = logging.getLogger(__name__)


class Engine(Traced):
    """Open with `async with`, or `open` and `aclose`. Arguments as in the README; sizes are ints in bytes or "512MiB".

    device: "auto" (a GPU, or the CPU where there is none), "cpu", "emulated", "cuda:N". device_memory: cap on device bytes; on
    a GPU, if not given, what is free there. host_memory: cap on RAM that tiles may take (on cpu this is the budget, and
    device_memory is refused); if not given, about four fifths of what the machine, the memory cgroups of this process and its
    limits of address space (ulimit -v, -d) leave. spill: a folder on a fast disk for what RAM cannot hold, for one engine at
    a time. spill_limit: cap on its bytes, set aside at once. link_rate: emulated
    only, bytes a second each way. precision: "fp32", or on a GPU "tf32" or "bf16".
    prefetch: how far transfers run ahead of compute: for each unit 4 tiles (16 from the spill folder) are loaded before their
    use and as many slots kept free for the next, at most an eighth of the slots in all; 0 is the run without overlap.
    rates: by which is decided what moves, such as `rates` of another engine; if not given, those of this machine, which its
    first engine measures and keeps in the user's cache. watchdog: seconds without any progress after which waiting ends with
    StalledError; None waits for ever. wrap_spill: given the spill file, returns what is used in its place (storage/faults.py).
    report: called while kernels are compiled, with (kernel, ready, total), from a worker thread.

    While an engine is open BLAS libraries of the process use one thread (threadpoolctl); that is undone on close.
    Raises ValueError or TypeError for wrong arguments, DeviceError for a device that is not there, and on opening TierError for
    a spill folder that cannot be used.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        spill: str | os.PathLike[str] | None = None,
        spill_limit: int | str | None = None,
        link_rate: int | str | None = None,
        prefetch: int = 2,
        precision: str = "fp32",
        rates: Rates | None = None,
        watchdog: float | None = 60.0,
        wrap_spill: Callable[[RawFile], RawFile] | None = None,
        report: Report | None = None,
        make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop,
    ) -> None:
        if not isinstance(device, str):
            raise TypeError(f"device is {shown(device)}: expected a name such as 'auto', 'cpu', 'emulated' or 'cuda:0'")
        if rates is not None and not isinstance(rates, Rates):
            raise TypeError(f"rates is {shown(rates)}: expected the rates of another engine, or None for those of this machine")
        if not isinstance(precision, str):
            raise TypeError(f"precision is {shown(precision)}: expected 'fp32', 'tf32' or 'bf16'")
        if spill is not None and not isinstance(spill, str | os.PathLike):
            raise TypeError(f"spill is {shown(spill)}: expected the path of a folder, or None for none")
        for name, value in (("spill_limit", spill_limit), ("wrap_spill", wrap_spill)):
            if spill is None and value is not None:
                raise ValueError(f"{name} without spill: name the folder with spill, or leave {name} out")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
            raise ValueError(f"prefetch is {shown(prefetch)}: expected a whole number of at least 0, such as 2")
        if watchdog is not None and not (isinstance(watchdog, int | float) and watchdog > 0):
            raise ValueError(f"watchdog is {shown(watchdog)}: expected seconds above 0, or None to wait for ever")
        limit = None if spill_limit is None else _positive("spill_limit", spill_limit)
        folder = None if spill is None else SpillTier(os.fspath(spill), limit, wrap=wrap_spill)
        rate = None if link_rate is None else _positive("link_rate", link_rate)
        on_device = None if device_memory is None else _positive("device_memory", device_memory)
        in_ram = None if host_memory is None else _positive("host_memory", host_memory)
        opened = open_device(device, link_rate=rate, precision=precision)
        if not opened.has_link and device_memory is not None:
            opened.close()
            raise ValueError("device_memory does not go with device 'cpu': RAM is the device there; give host_memory")
        try:
            on_device = opened.budget(on_device)
        except BudgetError:
            opened.close()
            raise
        remedy = ""
        if in_ram is None:
            room = tightest()
            in_ram, remedy = room.share, room.remedy
            if on_device is not None and isinstance(opened, HostMemory):  # which is RAM as well
                in_ram -= min(on_device, room.share // 2)
        supposed = assumed(opened.name, precision) if rates is None else rates
        find = partial(machine_rates, opened, precision, on_device) if rates is None else None
        life = Lifetime(opened, folder, make_loop, report, supposed, find)
        super().__init__(life, "the engine", life.tell, precision, prefetch)
        self.options = TierOptions(
            device_memory=on_device, host_memory=in_ram, prefetch=prefetch, watchdog=watchdog, host_remedy=remedy,
            rates=supposed.limited(rate),
        )  # fmt: skip
        self._link_rate = rate
        #: by name
        self._lent: dict[str, LentShare] = {}
        self._count_lent = itertools.count(1)

    @property
    def device_cap(self) -> int:
        """Cap in bytes on the arena that operations run in."""
        if self._assembly is not None:
            return super().device_cap
        cap = self.options.device_memory if self._device.has_link else self.options.host_memory
        assert cap is not None
        return cap

    async def open(self) -> Self:
        """Open it where no block can be put around its use, such as in a service that is told of its start; see `aclose`.

        Cancelled, however often, it leaves nothing open and raises CancelledError. DeviceError if it was opened or closed
        before, or is closed meanwhile.
        """
        began, life = time.monotonic(), self._life
        life.claim()
        spare_address_space()
        self._spills = None if life.spill is None else life.device.add_stream("spill", TRANSFERS)
        tiers = Tiers(life.device, life.spill, self._spills, self.options, tell=self.tell)
        self._put_together(tiers, life.device.add_stream("files", THREADS), Turn(tiers, self.weight))
        if life.trace is not None:
            life.trace.attach(life.device.streams())
        await life.begin()
        tiers.rates = life.rates.limited(self._link_rate)
        self.options = replace(self.options, rates=tiers.rates)
        now, seconds = self.statistics(), time.monotonic() - began
        caps = now.device_memory_bytes, now.host_memory_bytes, now.spill_limit_bytes
        logger.info("the engine on %s is open after %.1f s: device_memory %s, host_memory %s, spill_limit %s bytes",
                    now.device, seconds, *caps)  # fmt: skip
        self.tell(Opened, device=now.device, device_memory_bytes=caps[0], host_memory_bytes=caps[1], spill_limit_bytes=caps[2],
                  seconds=seconds)  # fmt: skip
        return self

    async def aclose(self) -> None:
        """Wait for tasks of `spawn`, end what still runs, run out what was enqueued, end all threads: whole, however often it
        is cancelled; then the tasks are cancelled too, and CancelledError is raised.

        From any loop, also while another task opens it, which then has DeviceError. A second call waits for the first, and one
        before the engine was opened leaves it closed. Raises what a task of `spawn` has raised, once; DeviceError in a forked
        child, and from a job of the engine's own, which it would wait for.
        """
        await self._life.end(None)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `aclose` after a clean end of the block; after an error the tasks of `spawn` are cancelled at once.

        In a forked child nothing is closed: DeviceError after a clean end of the block, while an error or an exit goes its way.
        """
        await self._life.end(kind)

    def events(self, limit: int = LIMIT) -> Events:
        """What happens here from now on, for `async for`; see asynctile.events for what is told, and Events for `limit`.

        Before the engine is opened as well. Each call makes a reader of its own; none holds up anything. ValueError for a limit
        below 1.
        """
        self.check_process()
        return self._life.hub.reader(limit)

    def share(
        self,
        *,
        host_memory: int | str,
        device_memory: int | str | None = None,
        spill_limit: int | str | None = None,
        name: str | None = None,
        weight: float = 1.0,
        interactive: bool = False,
    ) -> AbstractAsyncContextManager[Share, None]:
        """Lend a part of the caps to jobs that run beside those of this engine: models and trainers are made on the share.

        Sizes as in Engine: device_memory goes with a device that has memory of its own, spill_limit with a spill folder
        (without it the share has none). name: for events and metrics, "share-1" and so on if not given. weight: of the device's
        time while several shares have a job; the engine's own is 1. interactive: its jobs go first, and hold back all others,
        until its weight is spent. Results are as on an engine with these caps. At the end of the block its tiles are freed and
        the engine has its caps back. Both wait for programs of this engine that run. BudgetError if what stands here leaves too
        little, ValueError for a size that does not go with the device, for a name that another share has and for a weight that
        is not above 0.
        """
        spill = self.tiers.spill
        if self.has_link != (device_memory is not None):
            raise ValueError(
                f"a share of {self.device} needs device_memory, its part of the device's own" if self.has_link else
                "device_memory does not go with device 'cpu': RAM is the device there; give host_memory"
            )
        if spill_limit is not None and spill is None:
            raise ValueError("spill_limit without spill: the engine has no spill folder; leave spill_limit out")
        if host_memory is None:
            raise TypeError("host_memory is None: expected what the share may take of the engine's RAM, such as '512MiB'")
        given = (("device_memory", device_memory), ("host_memory", host_memory), ("spill_limit", spill_limit))
        sizes = [0 if value is None else _positive(key, value) for key, value in given]
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ValueError(f"weight is {shown(weight)}: expected a finite number above 0, such as 2.0")
        if not isinstance(interactive, int):
            raise TypeError(f"interactive is {shown(interactive)}: expected True or False")
        return Lending(self, self._life, lambda: self._share(name, sizes, weight, interactive), self._take_back)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The engine itself and what it has lent, oldest first; from any thread."""
        return self, *self._lent.values()

    async def _share(self, name: str | None, sizes: Sequence[int], weight: float, interactive: bool) -> LentShare:
        """On the device's loop; whole, or not at all."""
        on_device, in_ram, on_disk = sizes
        async with self.exclusive():
            tell = Tell(self._life.hub, self._named(name))
            self._schedules.leave()
            spill, caps = self.tiers.spill, self.tiers.caps
            region = SpillRegion(spill, on_disk) if spill is not None and on_disk else None
            is_lent = False
            try:
                cancelled = await under_shield(caps.cede(on_device, in_ram))
                is_lent = True
                if cancelled:
                    raise asyncio.CancelledError
                options = replace(self.options, device_memory=on_device, host_memory=in_ram, host_remedy="")
                part = LentShare(self._life, "its share of the engine", tell, self.precision, self.prefetch, region, options)
                part.plays = self.plays
                tiers = Tiers(self._device, region, self._spills, options, tell=tell)
                part._put_together(tiers, self._files, Turn(tiers, weight, interactive=interactive))
                self._lent[tell.share] = part
                return part
            except BaseException:
                if is_lent:
                    await under_shield(caps.regain(on_device, in_ram))
                if region is not None:
                    region.give_back()
                raise

    def _named(self, name: str | None) -> str:
        """The name of a new share; ValueError if another has that one, TypeError for what is no name."""
        if name is not None and not (isinstance(name, str) and name):
            raise TypeError(f"name is {shown(name)}: expected a string such as 'chat', or None for one that is free")
        taken = {ENGINE, *self._lent}
        if name in taken:
            raise ValueError(f"a share named {name!r} stands: expected a name that is none of {', '.join(sorted(taken))}")
        return name or next(free for number in self._count_lent if (free := f"share-{number}") not in taken)

    async def _take_back(self, part: LentShare) -> None:
        """On the device's loop, not to be cancelled: its jobs end, its tiles are freed."""
        options = part.options
        try:
            await part.end()
        finally:
            del self._lent[part.name]
        async with self.exclusive():
            self._schedules.leave()
            await self.tiers.caps.regain(options.device_memory or 0, options.host_memory or 0)


def _positive(name: str, value: int | str) -> int:
    size = parse_size(value)
    if size <= 0:
        raise ValueError(f"{name} is {shown(value)}: expected a size above zero, such as '512MiB'")
    return size
