"""The engine: one device, its tiers and its loop, opened and closed as one.

Everything public here may be awaited from any event loop. The work happens on the device's own loop (asynctile/loop.py)
and streams; the caller's loop stays free.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.device import open_device
from asynctile.device.base import Report
from asynctile.errors import AsynctileError, DeviceError, TierError
from asynctile.handle import Handle
from asynctile.lane import Lane
from asynctile.loop import LoopThread, new_loop
from asynctile.operation import Operation
from asynctile.program import Program
from asynctile.run import Run
from asynctile.storage.arena import Arena, Demand, align
from asynctile.storage.host import HostTier
from asynctile.storage.residency import Ledger
from asynctile.storage.sizes import parse_size
from asynctile.stream import Event
from asynctile.trace import Trace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of an engine. Sizes in bytes, counters from its start, caps None where there is none."""

    device: str
    device_memory_bytes: int | None
    device_used_bytes: int
    device_peak_bytes: int
    host_memory_bytes: int | None
    host_used_bytes: int
    host_peak_bytes: int
    uploaded_bytes: int
    downloaded_bytes: int
    operations: int
    stall_s: float


class Engine:
    """Open with `async with`. Arguments as in the README; sizes are ints in bytes or strings such as "512MiB".

    device: "auto", "cpu" or "emulated". device_memory: cap on device bytes. host_memory: cap on RAM that tiles may take
    (on cpu this is the budget, and device_memory is refused). link_rate: emulated only, bytes a second each way.
    prefetch: how far transfers run ahead of compute: for each unit 4 tiles are loaded before their use and 4 slots kept
    free for the next (at most an eighth of the slots in all); 0 is the run without overlap.
    report: called while kernels are compiled, with (kernel, ready, total), from a worker thread.

    While an engine is open BLAS libraries of the process use one thread (threadpoolctl); that is undone on close.
    Raises ValueError or TypeError for wrong arguments, DeviceError for a device that is not there.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        spill: str | None = None,
        spill_limit: int | str | None = None,
        link_rate: int | str | None = None,
        prefetch: int = 2,
        precision: str = "fp32",
        report: Report | None = None,
        make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop,
    ) -> None:
        if spill is not None or spill_limit is not None:
            raise ValueError("spill is not built yet: leave spill and spill_limit out")
        if precision != "fp32":
            raise ValueError(f"precision {precision!r} is not built yet: expected 'fp32'")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
            raise ValueError(f"prefetch is {prefetch!r}: expected a whole number of at least 0, such as 2")
        self._link_rate = None if link_rate is None else _positive("link_rate", link_rate)
        self._device_memory = None if device_memory is None else _positive("device_memory", device_memory)
        self._host_memory = None if host_memory is None else _positive("host_memory", host_memory)
        self._device = open_device(device, link_rate=self._link_rate)
        if not self._device.has_link and device_memory is not None:
            self._device.close()
            raise ValueError("device_memory does not go with device 'cpu': RAM is the device there; give host_memory")
        self.prefetch = prefetch
        self._report = report
        self._make_loop = make_loop
        self._loop: LoopThread | None = None
        self._used = False
        self._busy: asyncio.Lock | None = None
        self._trace: Trace | None = None

    @property
    def device(self) -> str:
        return self._device.name

    @property
    def device_cap(self) -> int | None:
        """Cap in bytes on the arena that operations run in; None: none."""
        return self._device_memory if self._device.has_link else self._host_memory

    @property
    def has_link(self) -> bool:
        """Whether the device has memory of its own, behind a link."""
        return self._device.has_link

    @property
    def host_cap(self) -> int | None:
        return self._host_memory

    async def __aenter__(self) -> Self:
        if self._used:
            raise DeviceError("an engine opens once: make a new Engine to go on")
        self._used = True
        hold_one_thread()
        try:
            self._device.start()
            await asyncio.get_running_loop().run_in_executor(None, self._device.warm, self._report)
            self._host = HostTier(self._host_memory) if self._device.has_link else None
            self._arena = Arena(self.device_cap, divided=self._device.has_link)
            self._ledger = Ledger(self._arena, self._host)
            self.lane = Lane(self._device, self._ledger, self.prefetch)
            self._busy = asyncio.Lock()
            self._loop = LoopThread(self._make_loop)
            self._loop.start()
        except BaseException:
            self._device.close()
            let_go()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what still runs, run out what was enqueued, end all threads."""
        loop = asyncio.get_running_loop()
        thread, self._loop = self._loop, None
        assert thread is not None
        try:
            await thread.end_jobs()
            await loop.run_in_executor(None, self._device.close)
        finally:
            await loop.run_in_executor(None, thread.close)
            self.lane.close()
            if self._host is not None:
                self._host.close()
            let_go()

    async def call(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the device's loop and await it from here. DeviceError once the engine is closed."""
        if self._loop is None:
            job.close()
            raise DeviceError("the engine is not open: use it inside 'async with Engine(...)'")
        return await self._loop.call(job)

    async def launch(self, operation: Operation, number: Any = None) -> Event:
        """Issue one operation outside a program; returns when it is enqueued, with its event. See Lane.launch."""
        return await self.call(self._launch(operation, number))

    async def synchronize(self) -> None:
        """Wait until everything that was launched has run; raises its first error."""
        await self.call(self._synchronize())

    async def reserve(self, demand: Demand) -> None:
        """Cut the arena for tiles of these sizes; BudgetError below the floor, before anything moves."""
        await self.call(self._reserve(demand))

    async def store(self, tiles: Iterable[tuple[Handle, np.ndarray]]) -> None:
        """Fill persistent tiles from host arrays, copied. BudgetError when a tier is full."""
        await self.call(self._store(tiles))

    async def read(self, tile: Handle) -> np.ndarray:
        """A copy of a tile's newest bytes."""
        return (await self.read_all([tile]))[0]

    async def read_all(self, tiles: Iterable[Handle]) -> list[np.ndarray]:
        """Copies of the newest bytes of several tiles."""
        return await self.call(self._read(list(tiles)))

    async def release(self, tiles: Iterable[Handle]) -> None:
        """Free tiles that will not be used again."""
        await self.call(self._release(list(tiles)))

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """On the device's loop: one program at a time, in order of asking."""
        assert self._busy is not None
        async with self._busy:
            yield

    async def start(
        self,
        program: Program,
        demand: Demand,
        inputs: Mapping[str, np.ndarray],
        outputs: dict[str, np.ndarray] | None = None,
    ) -> Run:
        """On the device's loop, inside `exclusive`: begin a run of `program`.

        demand: what it asks of the arena, which another program may have cut for itself since. BudgetError, before
        any work, if the caps are below its floor.
        """
        await self._cut(demand)
        for name, value in inputs.items():
            self.fill(program.inputs[name], value)
        return Run(self.lane, program, demand, outputs)

    def fill(self, tile: Handle, value: np.ndarray) -> None:
        """On the device's loop: put host bytes in a tile that no work in flight uses."""
        if value.shape != tile.shape:
            raise ValueError(f"{tile.name} takes an array of shape {tile.shape}, not {value.shape}")
        if self._host is None:
            if tile.slot is None:
                self.lane.admit_for_host(tile)
            np.copyto(tile.array, value)
            tile.written = None
            return
        if tile.slot is not None:
            self.lane.drop(tile)
        if tile.backing is None:
            tile.backing = self._host.take(tile.nbytes, f"tile {tile.name}")
        np.copyto(tile.backing.array(tile.shape, tile.dtype), value)
        tile.valid_below = True
        tile.below = None

    def statistics(self) -> Statistics:
        """What the engine holds and has moved, at this moment."""
        host, lane = self._host, self.lane
        used, peak = self._arena.used_nbytes, self._ledger.peak_nbytes
        return Statistics(
            device=self.device,
            device_memory_bytes=self._device_memory,
            device_used_bytes=used if host is not None else 0,
            device_peak_bytes=peak if host is not None else 0,
            host_memory_bytes=self._host_memory,
            host_used_bytes=host.used_nbytes if host is not None else used,
            host_peak_bytes=host.peak_nbytes if host is not None else peak,
            uploaded_bytes=lane.uploaded_nbytes,
            downloaded_bytes=lane.downloaded_nbytes,
            operations=lane.operations,
            stall_s=self._device.stall_s(),
        )

    def start_trace(self) -> None:
        """Record what every stream runs from now on, for `write_trace`."""
        self._trace = Trace(self._device.streams())

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write what was recorded as a Chrome trace (chrome://tracing, Perfetto). ValueError if nothing was started."""
        if self._trace is None:
            raise ValueError("no trace was started: call start_trace() before the work to be traced")
        self._trace.write(path)

    async def _launch(self, operation: Operation, number: Any) -> Event:
        await self.lane.inputs_enqueued(operation)
        async with self.exclusive():
            return await self.lane.launch(operation, number)

    async def _synchronize(self) -> None:
        async with self.exclusive():
            await self.lane.drain()

    async def _reserve(self, demand: Demand) -> None:
        async with self.exclusive():
            await self._cut(demand)

    async def _cut(self, demand: Demand) -> None:
        """Make the tiers serve `demand`, moving every tile off the device if it must be divided anew.

        BudgetError before anything moves, if a cap is below what it needs.
        """
        await self.lane.settle()
        self._arena.check(demand, self._foreign(demand))
        if self._host is not None:
            here = Counter(align(tile.nbytes) for tile in demand.standing if tile.backing is not None)
            self._host.reserve({size: count - here[size] for size, count in demand.exact.items()})
        if self._arena.fits(demand):
            return
        if self._arena.divided:
            self.lane.clear()
            await self.lane.drain()
            for pool in self._arena.pools:
                pool.memory = None
            self._ledger.forget_pools()
        for pool in self._arena.cut(demand):
            self._device.map_pool(pool)

    def _foreign(self, demand: Demand) -> Counter[int]:
        """Resident tiles by size that `demand` does not count, where they cannot leave."""
        if self._arena.divided:
            return Counter()
        return Counter(align(tile.nbytes) for tile in self._ledger.resident if tile not in demand.standing)

    async def _store(self, tiles: Iterable[tuple[Handle, np.ndarray]]) -> None:
        async with self.exclusive():
            await self.lane.drain()
            for tile, value in tiles:
                self.fill(tile, value)

    async def _read(self, tiles: list[Handle]) -> list[np.ndarray]:
        async with self.exclusive():
            await self.lane.drain()
            copies = []
            for tile in tiles:
                if tile.slot is not None:
                    copy = np.empty(tile.shape, tile.dtype)
                    self.lane.fetch(tile, copy, tile.next_use)
                    await self.lane.drain()
                elif tile.below is not None and tile.below.error is not None:
                    raise TierError(f"tile {tile.name} was lost on its way to host memory") from tile.below.error
                elif tile.valid_below:
                    copy = tile.backing.array(tile.shape, tile.dtype).copy()
                else:
                    raise AsynctileError(f"tile {tile.name} was never written: store or compute it before reading it")
                copies.append(copy)
            return copies

    async def _release(self, tiles: list[Handle]) -> None:
        async with self.exclusive():
            await self.lane.drain()
            for tile in tiles:
                self.lane.release(tile)


def _positive(name: str, value: int | str) -> int:
    size = parse_size(value)
    if size <= 0:
        raise ValueError(f"{name} is {value!r}: expected a size above zero, such as '512MiB'")
    return size
