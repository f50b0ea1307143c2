"""The engine: one device or several like ones, the tiers and the event loop, opened and closed together.

Settings and statistics are in share.py, traces in traced.py, the shares that an engine lends in lent.py. The runtime does the
work (runtime.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import ClassVar, Self

from asynctile.device import open_devices
from asynctile.device.base import Device, Report
from asynctile.errors import BudgetError
from asynctile.events import Opened
from asynctile.hub import LIMIT, Events
from asynctile.lent import Lender, Lending
from asynctile.lifetime import Lifetime
from asynctile.loop.files import THREADS
from asynctile.loop.thread import new_loop
from asynctile.loop.turns import Turn
from asynctile.measure.known import machine_rates
from asynctile.memory.node_link import NodeLink
from asynctile.memory.spill_link import THREADS as TRANSFERS
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.nodes.tcp_exchange import TcpExchange
from asynctile.runtime import Runtime
from asynctile.schedule.rates import Rates, assumed
from asynctile.share import Share, runtime_of
from asynctile.storage.container import RawFile
from asynctile.storage.host import HostMemory
from asynctile.storage.input import shown
from asynctile.storage.limits import spare_address_space, tightest
from asynctile.storage.sizes import parse_size
from asynctile.storage.spill import SpillTier
from asynctile.traced import Traced

logger = logging.getLogger(__name__)


class Engine(Traced):
    """One device, or several like ones, with the memory below. Open it with `async with`, or with `open` and `aclose`.

    Sizes are ints in bytes or strings such as "512MiB".

    device: "auto" (a GPU, or the CPU where there is none), "cpu", "emulated" or "cuda:N". Several devices over one RAM:
        "emulated*4", "cuda:0-3", "cuda:0,cuda:2", "cuda:all".
    device_memory: cap on the bytes of each device. None: on a GPU, the bytes that are free there. Refused on cpu.
    host_memory: cap on the RAM that tiles may take; on cpu this is the budget. None: about four fifths of the RAM that the
        machine, the memory cgroups of this process and its limits of address space (ulimit -v, -d) leave.
    spill: a folder on a fast disk for tiles that RAM cannot hold. It serves one engine at a time.
    spill_limit: cap on the bytes in that folder, which are set aside at once.
    link_rate: bytes a second each way between RAM and the device, for emulated only, where each device has a link of its own.
    peer_rate: bytes a second that each device receives from the others, for several emulated devices only. None: no limit.
    exchange: the exchange with other nodes, each of which has such an engine and calls the same steps. The engine does not
        close it. Models on shares of the engine train alone. None: so do all.
    prefetch: how far transfers run ahead of compute. Each unit loads 4 tiles (16 from the spill folder) before their use and
        keeps as many slots free for the next ones, at most an eighth of all slots. 0: no overlap.
    precision: "fp32", or on a GPU "tf32" or "bf16".
    rates: the rates that decide what moves, such as `rates` of another engine. None: the rates of this machine, which its
        first engine measures and keeps in the user's cache.
    watchdog: seconds without any progress after which a wait raises StalledError. None: waits never end.
    wrap_spill: takes the spill file and returns the file to use in its place (storage/faults.py).
    report: called from a worker thread with (kernel, ready, total) while kernels are compiled.
    make_loop: makes the engine's own event loop; the default is uvloop where it is installed.

    While an engine is open, the BLAS libraries of the process use one thread each (threadpoolctl); closing undoes that.
    ValueError or TypeError for wrong arguments, DeviceError for a missing device. Opening raises TierError for a spill folder
    that cannot be used.
    """

    #: the class of its runtime
    _runtime_type: ClassVar[type[Runtime]] = Runtime

    def __init__(
        self,
        device: str = "auto",
        *,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        spill: str | os.PathLike[str] | None = None,
        spill_limit: int | str | None = None,
        link_rate: int | str | None = None,
        peer_rate: int | str | None = None,
        exchange: TcpExchange | None = None,
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
            raise TypeError(f"spill is {shown(spill)}: expected the path of a folder, or None for no spill folder")
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
        between = None if peer_rate is None else _positive("peer_rate", peer_rate)
        devices = open_devices(device, link_rate=rate, peer_rate=between, precision=precision)
        try:
            on_device = _cap_of_each(devices, on_device)
        except (BudgetError, ValueError):
            for opened in devices:
                opened.close()
            raise
        first, remedy = devices[0], ""
        if in_ram is None:
            room = tightest()
            in_ram, remedy = room.share, room.remedy
            if on_device is not None and isinstance(first, HostMemory):  # the devices are RAM as well
                in_ram -= min(on_device * len(devices), room.share // 2)
        supposed = assumed(first.name, precision) if rates is None else rates
        find = partial(machine_rates, first, precision, on_device) if rates is None else None
        life = Lifetime(devices, precision, folder, make_loop, report, supposed, find)
        options = TierOptions(
            device_memory=on_device, host_memory=in_ram, prefetch=prefetch, watchdog=watchdog, host_remedy=remedy,
            rates=supposed.limited(rate),
        )  # fmt: skip
        super().__init__(life, life.tell, options)
        self._link_rate = rate
        self._exchange = exchange
        #: None until it is being opened
        self._lender: Lender | None = None

    async def open(self) -> Self:
        """Open the engine where no block can surround its use, as in a service with a start hook. `aclose` closes it.

        If it is cancelled, however often, it leaves nothing open and raises CancelledError. DeviceError if the engine was
        opened or closed before, or is closed meanwhile.
        """
        began, life = time.monotonic(), self._life
        life.claim()
        spare_address_space()
        transfers = None if life.spill is None else life.device.add_stream("spill", TRANSFERS)
        tiers = Tiers(life.devices, life.spill, transfers, self._options, tell=self._tell)
        if self._exchange is not None:
            stream = life.device.add_stream("nodes", 1)
            tiers.nodes = NodeLink(self._exchange, stream, tiers.runners, lambda: tiers.run_ahead.computing > 0)
        turn, files = Turn(tiers, self.weight), life.device.add_stream("files", THREADS)
        runtime = self._runtime_type(life, self._tell, self._options, turn, files, self.plays)
        self._runtime, self._lender = runtime, Lender(runtime, transfers)
        if life.trace is not None:
            life.trace.attach(life.streams())
        await life.begin()
        tiers.rates = life.rates.limited(self._link_rate)
        runtime.options = replace(self._options, rates=tiers.rates)
        now, seconds = self.statistics(), time.monotonic() - began
        caps = now.device_memory_bytes, now.host_memory_bytes, now.spill_limit_bytes
        logger.info("the engine on %s is open after %.1f s: device_memory %s, host_memory %s, spill_limit %s bytes",
                    now.device, seconds, *caps)  # fmt: skip
        self._tell(Opened, device=now.device, device_memory_bytes=caps[0], host_memory_bytes=caps[1],
                   spill_limit_bytes=caps[2], seconds=seconds)  # fmt: skip
        return self

    async def aclose(self) -> None:
        """Close the engine: wait for saves, end the jobs that still run, drain the enqueued work and end all threads.

        The engine closes whole, however often this is cancelled; saves are then cancelled too, and CancelledError is raised.
        From any loop, also while another task opens the engine: that task gets a DeviceError. A second call waits for the
        first. A call before the engine was opened leaves it closed. Raises the error of a save, once. DeviceError in a forked
        child, and from a job that runs on the engine itself, since closing waits for its jobs.
        """
        await self._life.end(None)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the engine as `aclose` does; after an error, saves are cancelled at once.

        In a forked child nothing is closed: a clean end of the block raises DeviceError, an error or an exit passes through.
        """
        await self._life.end(kind)

    def events(self, limit: int = LIMIT) -> Events:
        """Return a reader of everything that happens from now on, for `async for`. asynctile.events lists the events.

        limit: the most events that wait for this reader (see `Events`). Works before the engine is opened as well. Each call
        makes a reader of its own, and no reader delays the engine. ValueError for a limit below 1.
        """
        self._life.check_process()
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
        """Lend a part of the caps to models and trainers that run beside those of this engine: `async with engine.share(...)`.

        Sizes are given as to Engine. device_memory goes with devices that have memory of their own, spill_limit with a spill
        folder; without spill_limit the share has no spill folder.

        name: for events and metrics; "share-1" and so on if not given.
        weight: the share's part of the device's time while several shares have a job; the engine's own weight is 1.
        interactive: the share's jobs go first and hold back all others, until its weight is spent.

        Results are as on an engine with these caps. At the end of the block the share's tiles are freed and the engine gets its
        caps back. Begin and end wait for programs of this engine that run. BudgetError if the tiles that stand here leave too
        little; ValueError for a size that does not go with the device, for a name that another share has, and for a weight that
        is not above 0.
        """
        tiers = runtime_of(self).tiers
        if tiers.device.has_link != (device_memory is not None):
            raise ValueError(
                f"a share of {self.device} needs device_memory: its part of the device's memory" if tiers.device.has_link else
                "device_memory does not go with device 'cpu': RAM is the device there; give host_memory"
            )
        if spill_limit is not None and tiers.spill is None:
            raise ValueError("spill_limit without spill: the engine has no spill folder; leave spill_limit out")
        if host_memory is None:
            raise TypeError("host_memory is None: expected the share's part of the engine's RAM, such as '512MiB'")
        given = (("device_memory", device_memory), ("host_memory", host_memory), ("spill_limit", spill_limit))
        sizes = [0 if value is None else _positive(key, value) for key, value in given]
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ValueError(f"weight is {shown(weight)}: expected a finite number above 0, such as 2.0")
        if not isinstance(interactive, int):
            raise TypeError(f"interactive is {shown(interactive)}: expected True or False")
        lender = self._lender
        assert lender is not None, "an engine that has a runtime has a lender"
        return Lending(lender, lambda: lender.lend(name, sizes, weight, interactive))

    @property
    def shares(self) -> tuple[Share, ...]:
        """The engine itself and the shares that it has lent, oldest first; from any thread."""
        return self, *(() if self._lender is None else self._lender.lent)


def _cap_of_each(devices: Sequence[Device], wanted: int | None) -> int | None:
    """Return the cap on the memory of each device. wanted: the cap that was asked for.

    BudgetError if a device has less. ValueError for a cap on a device that has no memory of its own.
    """
    if wanted is not None and not devices[0].has_link:
        raise ValueError("device_memory does not go with device 'cpu': RAM is the device there; give host_memory")
    caps = [cap for device in devices if (cap := device.budget(wanted)) is not None]
    return min(caps, default=None)


def _positive(name: str, value: int | str) -> int:
    size = parse_size(value)
    if size <= 0:
        raise ValueError(f"{name} is {shown(value)}: expected a size above zero, such as '512MiB'")
    return size
