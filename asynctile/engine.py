"""The engine: one device, its tiers and its loop, opened and closed as one.

Everything public here may be awaited from any event loop. The work happens on the device's own loop (asynctile/loop/thread.py)
and streams; the caller's loop stays free. Long because it is the whole public face of an engine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar
from weakref import WeakSet

import numpy as np

from asynctile.device import open_device
from asynctile.device.base import Report
from asynctile.errors import BudgetError, DeviceError
from asynctile.lifetime import Dependent, Lifetime
from asynctile.loop.exclusive import Exclusive
from asynctile.loop.files import THREADS, Files
from asynctile.loop.thread import CLOSED, LoopThread, Undo, in_thread, new_loop
from asynctile.measure.rates import Rates, measure_rates
from asynctile.measure.statistics import Statistics, snapshot
from asynctile.measure.trace import Trace
from asynctile.memory.caps import Loan
from asynctile.program.grain import Grain
from asynctile.program.handle import Handle
from asynctile.program.operation import Operation
from asynctile.program.precision import compute_dtype
from asynctile.program.program import Program
from asynctile.run.assembly import Tiers
from asynctile.run.job import Run
from asynctile.storage.container import RawFile
from asynctile.storage.demand import Demand
from asynctile.storage.documents import finish
from asynctile.storage.host import HostMemory
from asynctile.storage.limits import spare_address_space, tightest
from asynctile.storage.sizes import parse_size
from asynctile.storage.spill import SpillTier
from asynctile.streams.stream import StreamEvent

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Engine:
    """Open with `async with`. Arguments as in the README; sizes are ints in bytes or strings such as "512MiB".

    device: "auto" (a GPU, or the CPU where there is none), "cpu", "emulated", "cuda:N". device_memory: cap on device bytes; on
    a GPU, if not given, what is free there. host_memory: cap on RAM that tiles may take (on cpu this is the budget, and
    device_memory is refused); if not given, about four fifths of what the machine, the memory cgroups of this process and its
    limits of address space (ulimit -v, -d) leave. spill: a folder on a fast disk for what RAM cannot hold, for one engine at
    a time. spill_limit: cap on its bytes, set aside at once. link_rate: emulated
    only, bytes a second each way. precision: "fp32", or on a GPU "tf32" or "bf16".
    prefetch: how far transfers run ahead of compute: for each unit 4 tiles (16 from the spill folder) are loaded before their
    use and as many slots kept free for the next, at most an eighth of the slots in all; 0 is the run without overlap.
    watchdog: seconds without any progress after which waiting ends with StalledError; None waits for ever. wrap_spill: given
    the spill file, returns what is used in its place (storage/faults.py). report: called while kernels are compiled, with
    (kernel, ready, total), from a worker thread.

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
        watchdog: float | None = 60.0,
        wrap_spill: Callable[[RawFile], RawFile] | None = None,
        report: Report | None = None,
        make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop,
    ) -> None:
        for name, value in (("spill_limit", spill_limit), ("wrap_spill", wrap_spill)):
            if spill is None and value is not None:
                raise ValueError(f"{name} without spill: name the folder with spill, or leave {name} out")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
            raise ValueError(f"prefetch is {prefetch!r}: expected a whole number of at least 0, such as 2")
        if watchdog is not None and not (isinstance(watchdog, int | float) and watchdog > 0):
            raise ValueError(f"watchdog is {watchdog!r}: expected seconds above 0, or None to wait for ever")
        self._watchdog = watchdog
        limit = None if spill_limit is None else _positive("spill_limit", spill_limit)
        self._spill = None if spill is None else SpillTier(os.fspath(spill), limit, wrap=wrap_spill)
        self._link_rate = None if link_rate is None else _positive("link_rate", link_rate)
        self._device_memory = None if device_memory is None else _positive("device_memory", device_memory)
        self._host_memory = None if host_memory is None else _positive("host_memory", host_memory)
        self._device = open_device(device, link_rate=self._link_rate, precision=precision)
        if not self._device.has_link and device_memory is not None:
            self._device.close()
            raise ValueError("device_memory does not go with device 'cpu': RAM is the device there; give host_memory")
        try:
            self._device_memory = self._device.budget(self._device_memory)
        except BudgetError:
            self._device.close()
            raise
        self._host_remedy = ""
        if self._host_memory is None:
            room = tightest()
            self._host_memory, self._host_remedy = room.share, room.remedy
            if self._device_memory is not None and isinstance(self._device, HostMemory):  # which is RAM as well
                self._host_memory -= min(self._device_memory, room.share // 2)
        self.precision = precision
        self.prefetch = prefetch
        self._report = report
        self._make_loop = make_loop
        self._used = self._is_open = False
        #: the process that opened it: a forked child has its objects, and none of its threads
        self._process: int | None = None
        self._life: Lifetime | None = None
        self._tiers: Tiers | None = None
        self._trace: Trace | None = None
        self._rates: Rates | None = None
        #: what has threads of its own and is closed with the engine, unless it has ended before
        self.dependents: WeakSet[Dependent] = WeakSet()

    @property
    def device(self) -> str:
        return self._device.name

    @property
    def grain(self) -> Grain:
        """How large the tiles of its device should be."""
        return self._device.grain

    @property
    def kernels(self) -> MutableMapping[str, Callable[..., None]]:
        """What its device launches, by `Operation.kernel`: put another callable in its place before work that uses it."""
        return self._device.kernels

    @property
    def device_cap(self) -> int:
        """Cap in bytes on the arena that operations run in."""
        cap = self._device_memory if self._device.has_link else self._host_memory
        assert cap is not None
        return cap

    @property
    def tiers(self) -> Tiers:
        """Where its tiles are; DeviceError before the engine was opened, and in a forked child."""
        self.check_process()
        if self._tiers is None:
            raise DeviceError("the engine is not open: use it inside 'async with Engine(...)'")
        return self._tiers

    async def __aenter__(self) -> Self:
        """Cancelled, however often, it leaves nothing open and raises CancelledError."""
        if self._used:
            raise DeviceError("an engine opens once: make a new Engine to go on")
        self._used, self._process = True, os.getpid()
        spare_address_space()
        caps = self._device_memory, self._host_memory
        self._tiers = Tiers(self._device, *caps, self._spill, self.prefetch, self._watchdog, self._host_remedy)
        self._files = self._device.add_stream("files", THREADS)
        self.busy = self.lock("the engine")
        life = Lifetime(self._tiers, self._make_loop, self._report, self.dependents)
        if await in_thread("opening", life.open, on_cancel=life.stop_opening, on_gone=life.abandon):
            await in_thread("closing", life.break_off)
            raise asyncio.CancelledError
        self._life, self._is_open = life, True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what still runs, run out what was enqueued, end all threads: whole, however often it is cancelled.

        Tasks of `spawn` are awaited after a clean end of the block, and cancelled after an error or when this is cancelled.
        In a forked child nothing is closed: DeviceError after a clean end of the block, while an error or an exit goes its way.
        """
        if kind is not None and self._process != os.getpid():
            return
        self.check_process()
        self._is_open = False
        life = self._life
        assert life is not None
        if kind is GeneratorExit:  # thrown away, with its loop: it may not wait
            life.abandon()
            return
        if await in_thread("closing", life.close if kind is None else life.break_off, on_cancel=life.hurry):
            raise asyncio.CancelledError
        if life.failed is not None and kind is None:
            raise life.failed

    @property
    def has_link(self) -> bool:
        """Whether operations run in a memory of their own, with RAM below; on cpu they run in RAM."""
        return self._device.has_link

    async def rates(self, demand: Demand) -> Rates | None:
        """How fast device, link and CPU are, measured once, with the arena cut for `demand`; None if no RAM is free for that.

        BudgetError if the caps are below the floor of `demand`.
        """
        if self._rates is None:
            self._rates = await self.call(self._measure(demand))
        return self._rates

    def check_floor(self, floor: Demand) -> None:
        """BudgetError if a tier that tiles can leave has a cap below what `floor` needs of it."""
        self.tiers.budget.check_floor(floor)

    def check_process(self) -> None:
        """DeviceError in a forked child of the process that opened the engine: it would wait there for threads that are not."""
        if self._process is not None and self._process != os.getpid():
            raise DeviceError(
                f"the engine was opened in process {self._process} and this is its forked child {os.getpid()}, which has "
                "none of its threads; open an Engine of its own here"
            )

    def check_room(self, nbytes: int) -> None:
        """BudgetError if RAM and the spill folder together cannot hold `nbytes`, however they are cut."""
        self.tiers.budget.check_room(nbytes)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """On the device's loop: a task there that the engine waits for before it closes."""
        assert self._life is not None
        return self._life.background.spawn(work)

    def borrow(self, nbytes: int, who: str) -> Loan | None:
        """On the device's loop, inside `exclusive`: count `nbytes` of the caller's RAM against host_memory, until given back.

        None if a program that was prepared needs them. who: borrows them, for messages.
        """
        return self.tiers.budget.borrow(nbytes, who)

    def lock(self, what: str) -> Exclusive:
        """A lock for coroutines on the device's loop, in order of asking. what: it guards, for messages."""
        return Exclusive(what, self.tiers.window)

    def files(self, what: str) -> Files:
        """On the device's loop: the file work of one save or load. what: that is, for messages."""
        return Files(self._files, self.tiers.window, what)

    async def compute(self, work: Callable[P, R], *args: P.args, **more: P.kwargs) -> R:
        """On the device's loop: Python that computes, in a thread, to its end even if cancelled.

        Not for what may wait, since the watchdog takes it for progress.
        """
        window = self.tiers.window
        window.computing += 1
        try:
            return await finish(asyncio.to_thread(work, *args, **more))
        finally:
            window.computing -= 1

    async def call(self, job: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        """Run a coroutine on the device's loop and await it from any loop. DeviceError once closed, and in a forked child.

        A caller that is cancelled passes that on to the job and waits for its end. undo: called on the device's loop with what
        the job made if the caller has gone, cancelled or with its loop, before it got that.
        """
        try:
            loop = self._open_loop()
        except DeviceError:
            job.close()
            raise
        return await loop.call(job, undo)

    def _open_loop(self) -> LoopThread:
        self.check_process()
        life = self._life
        if life is None or life.loop is None or not (self._is_open or life.loop.is_here()):
            raise DeviceError(CLOSED)
        return life.loop

    async def launch(self, operation: Operation, number: Any = None) -> StreamEvent:
        """Issue one operation outside a program; returns when it is enqueued, with its event. See Lane.launch."""
        return await self.call(self._launch(operation, number))

    async def synchronize(self) -> None:
        """Wait until everything that was launched has run; raises its first error."""
        await self.call(self._synchronize())

    async def reserve(self, demand: Demand) -> None:
        """Cut the arena for tiles of these sizes; BudgetError below the floor, before anything moves."""
        await self.call(self._reserve(demand))

    async def store(self, tiles: Iterable[tuple[Handle, np.ndarray]] | AsyncGenerator[tuple[Handle, np.ndarray]]) -> None:
        """Fill persistent tiles from host arrays, copied. BudgetError when a tier is full.

        An async iterator runs on the device's loop, and is closed.
        """
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

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """On the device's loop: one program at a time, in order of asking."""
        return self.busy.held()

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
        await self.tiers.cut(demand)
        try:
            for name, value in inputs.items():
                await self.tiers.fill(program.inputs[name], value)
        except BaseException:
            self.tiers.release(program.inputs.values())
            raise
        return Run(self.tiers, program, demand, outputs)

    async def fill(self, tile: Handle, value: np.ndarray) -> None:
        """On the device's loop: put host bytes in a tile that no work in flight uses."""
        await self.tiers.fill(tile, value)

    async def copies(self, tiles: Iterable[Handle]) -> list[np.ndarray]:
        """On the device's loop, inside `exclusive`: copies of the newest bytes of several tiles."""
        await self.tiers.window.drain()
        return [await self.tiers.read(tile) for tile in tiles]

    def statistics(self) -> Statistics:
        """What the engine holds and has moved, at this moment."""
        return snapshot(self.tiers)

    def start_trace(self) -> None:
        """Record what every stream runs from now on, for `write_trace`."""
        self._trace = Trace(self._device.streams())

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write what was recorded as a Chrome trace (chrome://tracing, Perfetto). ValueError if nothing was started."""
        if self._trace is None:
            raise ValueError("no trace was started: call start_trace() before the work to be traced")
        self._trace.write(path)

    async def _launch(self, operation: Operation, number: Any) -> StreamEvent:
        lane = self.tiers.lane
        while True:
            await lane.inputs_enqueued(operation)  # not while others are kept out, who may be the ones to write them
            async with self.exclusive():
                if lane.missing_input(operation) is None:
                    return await lane.launch(operation, number)

    async def _measure(self, demand: Demand) -> Rates | None:
        async with self.exclusive():
            await self.tiers.cut(demand)
            return await measure_rates(self.tiers, compute_dtype(self.precision))

    async def _synchronize(self) -> None:
        async with self.exclusive():
            await self.tiers.window.drain()

    async def _reserve(self, demand: Demand) -> None:
        async with self.exclusive():
            await self.tiers.cut(demand)

    async def _store(self, tiles: Iterable[tuple[Handle, np.ndarray]] | AsyncGenerator[tuple[Handle, np.ndarray]]) -> None:
        async with self.exclusive():
            await self.tiers.window.drain()
            if isinstance(tiles, AsyncGenerator):
                async with aclosing(tiles):
                    async for tile, value in tiles:
                        await self.tiers.fill(tile, value)
            else:
                for tile, value in tiles:
                    await self.tiers.fill(tile, value)

    async def _read(self, tiles: list[Handle]) -> list[np.ndarray]:
        async with self.exclusive():
            return await self.copies(tiles)

    async def _release(self, tiles: list[Handle]) -> None:
        async with self.exclusive():
            await self.tiers.window.settle()
            self.tiers.release(tiles)


def _positive(name: str, value: int | str) -> int:
    size = parse_size(value)
    if size <= 0:
        raise ValueError(f"{name} is {value!r}: expected a size above zero, such as '512MiB'")
    return size
