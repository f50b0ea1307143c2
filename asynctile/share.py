"""A share of an engine: tiles under a part of its caps, and the jobs that run over them, one at a time.

Everything public here may be awaited from any event loop. The work happens on the device's own loop (asynctile/loop/thread.py)
and streams; the caller's loop stays free. An Engine is the share of all that it has not lent (engine.py), what it lends is in
lent.py; shares run side by side, and what moves in one is a function of its own programs.

Long because a share is one object to whoever works on it: reading, writing, running and waiting are its methods.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

import numpy as np

from asynctile.device.base import Device
from asynctile.errors import DeviceError
from asynctile.hub import ENGINE, Tell
from asynctile.lifetime import Dependent, Lifetime
from asynctile.loop.exclusive import Exclusive
from asynctile.loop.files import Files
from asynctile.loop.thread import LoopThread, Undo, may_wait
from asynctile.loop.turns import Turn
from asynctile.measure.rates import measure_gemms
from asynctile.measure.statistics import Counters, Statistics, StepTraffic, snapshot, traffic
from asynctile.memory.caps import Loan
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.program.grain import Grain
from asynctile.program.operation import Operation
from asynctile.program.precision import compute_dtype
from asynctile.program.program import Program
from asynctile.repeat.job import Job
from asynctile.repeat.schedules import Schedules
from asynctile.run.assembly import Assembly
from asynctile.schedule.rates import Rates
from asynctile.storage.demand import Demand
from asynctile.storage.documents import finish
from asynctile.storage.sizes import format_size
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from asynctile.streams.recorder import Begun, Recorder
from asynctile.streams.stream import Stream

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Share:
    """What models, trainers and services work on. Made by `Engine` and by `Engine.share`.

    what: it is, for messages. name: in events and metrics, "engine" for the engine's own. tell: of it, to `Engine.events`.
    counts: of what is done on it. precision, prefetch: as given to Engine. plays: whether programs that repeat are played by
    compiled workers, or as graphs of a GPU; set it to False to do without, the results are the same. weight, interactive: as
    given to Engine.share.
    """

    weight, interactive = 1.0, False
    #: its caps, as they were asked for
    options: TierOptions

    def __init__(self, life: Lifetime, what: str, tell: Tell, precision: str, prefetch: int) -> None:
        self.tell = tell
        self.name = tell.share
        self.precision = precision
        self.prefetch = prefetch
        self.plays = True
        self.counts = Counters()
        self._life = life
        self._what = what
        self._assembly: Assembly | None = None

    def _put_together(self, tiers: Tiers, files: Stream, turn: Turn) -> None:
        """From now on it can be used. files: the stream of file work."""
        self.turn: Turn = turn
        self.weight, self.interactive = turn.weight, turn.interactive
        self._assembly = Assembly(tiers)
        self._schedules = Schedules(self._assembly, self.compute, lambda: self.plays)
        self._life.tiers.append(tiers)
        tiers.beside = self._life.tiers
        self._life.dependents.add(self._schedules)
        self._files: Stream = files
        self.busy: Exclusive = Exclusive(self._what, tiers.run_ahead, tiers.caps.look)

    def __repr__(self) -> str:
        """Which it is, where it computes, under which caps, and whether it can be used: at any time, in any process."""
        kind, options, life = type(self).__name__.removeprefix("Lent"), self.options, self._life
        caps = [f"device memory {format_size(options.device_memory)}"] if options.device_memory is not None else []
        caps += [f"RAM {format_size(options.host_memory)}"] if options.host_memory is not None else []
        caps += ["a spill folder"] if life.spill is not None else []
        elsewhere = life.process not in (None, os.getpid())
        state = "of another process" if elsewhere else "open" if self.is_open else "not open"
        name = "" if self.name == ENGINE else f" {self.name!r}"
        return f"<{kind}{name} on {self.device} in {self.precision} with {', '.join(caps)}; {state}>"

    @property
    def _device(self) -> Device:
        return self._life.device

    @property
    def is_open(self) -> bool:
        """Whether it takes work; from any thread. Never in a forked child of the process that opened it."""
        return self._life.is_open and self._life.process == os.getpid()

    @property
    def device(self) -> str:
        """Its name: "cpu", "emulated" or "cuda:N", whichever "auto" came to."""
        return self._device.name

    @property
    def grain(self) -> Grain:
        """How large the tiles of its device should be."""
        return self._device.grain

    @property
    def has_link(self) -> bool:
        """Whether operations run in a memory of their own, with RAM below; on cpu they run in RAM."""
        return self._device.has_link

    @property
    def link_rate(self) -> float | None:
        """Bytes a second of its link each way as given to Engine; None for no limit, or one that nobody gave."""
        return None if self._device.workers is None else self._device.workers.up_rate

    @property
    def rates(self) -> Rates:
        """Rates that everything is decided by, of the machine, whatever `link_rate` says: as given to Engine, or measured when
        the first engine of this machine was opened. Before it is open, those that are assumed.
        """
        return self._life.rates

    @property
    def recorder(self) -> Recorder | None:
        """Who is told what it does while a trace goes on; None else."""
        trace = self._life.trace
        return trace.recorder if trace is not None and trace.goes_on else None

    @property
    def kernels(self) -> MutableMapping[str, Callable[..., None]]:
        """What its device launches, by `Operation.kernel`: put another callable in its place before work that uses it."""
        return self._device.kernels

    @property
    def dependents(self) -> WeakSet[Dependent]:
        """What has threads, or views of the engine's memory, and is closed with the engine, unless it has ended before."""
        return self._life.dependents

    @property
    def device_cap(self) -> int:
        """Cap in bytes on the arena that operations run in."""
        cap = self.tiers.top.arena.cap
        assert cap is not None
        return cap

    @property
    def tiers(self) -> Tiers:
        """Where its tiles are; DeviceError before the engine was opened, and in a forked child."""
        return self.assembly.tiers

    @property
    def assembly(self) -> Assembly:
        """What its jobs run on; DeviceError as for `tiers`."""
        self._life.check_process()
        if self._assembly is None:
            raise DeviceError("the engine is not open: use it inside 'async with Engine(...)'")
        return self._assembly

    def check_process(self) -> None:
        """DeviceError in a forked child of the process that opened the engine."""
        self._life.check_process()

    def check_beside(self, other: Share) -> None:
        """ValueError unless both are parts of one engine."""
        if self._life is not other._life:
            raise ValueError("the share and the model are of two engines, which have no memory in common; use a share of the "
                             "model's own engine")

    def check_floor(self, floor: Demand) -> None:
        """BudgetError if a tier that tiles can leave has a cap below what `floor` needs of it."""
        self.tiers.caps.check_floor(floor)

    def check_room(self, nbytes: int) -> None:
        """BudgetError if RAM and the spill folder together cannot hold `nbytes`, however they are cut."""
        self.tiers.caps.check_room(nbytes)

    async def gemm_rate(self, demand: Demand) -> float | None:
        """FLOP/s of the device's products, with the arena cut for `demand`; measured each time it is asked for, in some tens of
        milliseconds and in slots that nobody has. None if there are none. BudgetError if the caps are below the floor of
        `demand`.
        """
        return await self.call(self._gemm_rate(demand))

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """On the device's loop: a task there that the engine waits for before it closes."""
        return self._life.background.spawn(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """On the device's loop: a task there that is a job like a caller's: an engine that closes ends it."""
        return self._open_loop().begin(work)

    def borrow(self, nbytes: int, who: str) -> Loan | None:
        """On the device's loop, inside `exclusive`: count `nbytes` of the caller's RAM against host_memory, until given back.

        None if a program that was prepared needs them. who: borrows them, for messages.
        """
        return self.tiers.caps.borrow(nbytes, who)

    def lock(self, what: str) -> Exclusive:
        """A lock for coroutines on the device's loop, in order of asking. what: it guards, for messages."""
        return Exclusive(what, self.tiers.run_ahead)

    def files(self, what: str) -> Files:
        """On the device's loop: the file work of one save or load. what: that is, for messages."""
        return Files(self._files, self.tiers.run_ahead, what)

    async def compute(self, work: Callable[P, R], *args: P.args, **more: P.kwargs) -> R:
        """On the device's loop: Python that computes, in a thread, to its end even if cancelled.

        Not for what may wait, since the watchdog takes it for progress.
        """
        run_ahead = self.tiers.run_ahead
        run_ahead.computing += 1
        try:
            return await finish(asyncio.to_thread(work, *args, **more))
        finally:
            run_ahead.computing -= 1

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

    async def give_back(
        self,
        job: Callable[[], Coroutine[Any, Any, None]],
        kind: type[BaseException] | None,
        began_on: asyncio.AbstractEventLoop,
    ) -> None:
        """At the end of a block, from any loop: run what gives back what it held, to its end; CancelledError afterwards.

        kind: of the error that ends the block, which began on the loop `began_on`. If it is thrown away with that, the job goes
        on by itself. Nothing once the share is closed: all has ended with it.
        """

        async def whole() -> None:
            with suppress(DeviceError):  # closed meanwhile
                await self.call(job())

        loop = self._life.loop
        if loop is None or not self.is_open:
            return
        if may_wait(kind, began_on):
            await loop.call_whole(whole())
        else:
            loop.post(lambda: self.spawn(whole()))

    def _open_loop(self) -> LoopThread:
        """Where its jobs run; DeviceError once they do no more."""
        return self._life.open_loop()

    async def launch(self, operation: Operation, number: Any = None) -> StreamEvent:
        """Run one operation outside a program; returns when it is enqueued, with its event. See Lane.perform.

        number: float64 array of length 1 for what it reports.
        """
        return await self.call(self._launch(operation, number))

    async def synchronize(self) -> None:
        """Wait until everything that was launched has run; raises its first error."""
        await self.call(self._synchronize())

    async def reserve(self, demand: Demand) -> None:
        """Cut the arena for tiles of these sizes; BudgetError below the floor, before anything moves."""
        await self.call(self._reserve(demand))

    async def store(self, tiles: Iterable[tuple[Tile, np.ndarray]] | AsyncGenerator[tuple[Tile, np.ndarray]]) -> None:
        """Fill persistent tiles from host arrays, copied. BudgetError when a tier is full.

        An async iterator runs on the device's loop, and is closed.
        """
        await self.call(self._store(tiles))

    async def read(self, tile: Tile) -> np.ndarray:
        """A copy of a tile's newest bytes."""
        return (await self.read_all([tile]))[0]

    async def read_all(self, tiles: Iterable[Tile]) -> list[np.ndarray]:
        """Copies of the newest bytes of several tiles."""
        return await self.call(self._read(list(tiles)))

    async def release(self, tiles: Iterable[Tile]) -> None:
        """Free tiles that will not be used again."""
        await self.call(self._release(list(tiles)))

    async def clear(self, tiles: Iterable[Tile]) -> None:
        """Free the bytes of tiles that may be stored and used again: what is known of programs that use them is kept."""
        await self.call(self._clear(list(tiles)))

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """On the device's loop: one program at a time, in order of asking."""
        return self._life.turns.held(self.busy, self.turn)

    def rounds(self) -> AbstractAsyncContextManager[Callable[[bool], bool]]:
        """On the device's loop: `exclusive` for texts, for several programs one after another. Behind each the function that
        this gives says whether the next may follow; it is told whether a token came.
        """
        return self._life.turns.rounds(self.busy, self.turn)

    def rest(self) -> None:
        """On the device's loop, inside `rounds`: no program runs, until the next begins; no other share is held back."""
        self._life.turns.end(self.turn)

    async def start(
        self,
        program: Program,
        demand: Demand,
        inputs: Mapping[str, np.ndarray],
        outputs: dict[str, np.ndarray] | None = None,
    ) -> Job:
        """On the device's loop, inside `exclusive`: begin a run of `program`, played if it repeats.

        demand: what it asks of the arena, which another program may have cut for itself since. outputs: what its fetches fill.
        From here to the end of `exclusive` the share takes turns with others that have a job.
        BudgetError, before any work, if the caps are below its floor.
        """
        self._life.check_process()
        self._life.turns.begin(self.turn)
        job = await self._schedules.start(program, demand, inputs, {} if outputs is None else outputs)
        self._life.turns.renew(self.turn)
        if (recorder := self.recorder) is not None:
            recorder.put(Begun(self.name, program))
        return job

    async def cut(self, demand: Demand) -> None:
        """On the device's loop, inside `exclusive`: `reserve`."""
        self._schedules.leave()
        await self.tiers.caps.cut(demand)

    async def fill(self, tiles: Iterable[tuple[Tile, np.ndarray]] | AsyncGenerator[tuple[Tile, np.ndarray]]) -> None:
        """On the device's loop, inside `exclusive`: `store`."""
        await self.tiers.run_ahead.drain()
        await self.assembly.put_all(tiles)

    async def empty(self, tiles: Iterable[Tile]) -> None:
        """On the device's loop, inside `exclusive`: `clear`."""
        self._schedules.leave()
        await self.tiers.run_ahead.settle()
        self.assembly.release(tiles)

    async def copies(self, tiles: Iterable[Tile]) -> list[np.ndarray]:
        """On the device's loop, inside `exclusive`: copies of the newest bytes of several tiles."""
        await self.tiers.run_ahead.drain()
        return [await self.assembly.read(tile) for tile in tiles]

    def statistics(self) -> Statistics:
        """What it holds, has moved and waits for, at this moment: from any thread, in microseconds, while anything runs."""
        return snapshot(self.name, self.assembly, self.busy.waiting, self.counts, self.turn)

    def traffic(self) -> StepTraffic:
        """What of `statistics` a step is told by."""
        return traffic(self.assembly)

    async def _launch(self, operation: Operation, number: Any) -> StreamEvent:
        inputs = self.assembly.inputs
        while True:
            await inputs.enqueued(operation)  # not while others are kept out, who may be the ones to write them
            async with self.exclusive():
                if inputs.missing(operation) is None:
                    self._schedules.leave()  # who plays knows nothing of it
                    return await self.assembly.launch(operation, number)

    async def _gemm_rate(self, demand: Demand) -> float | None:
        async with self.exclusive():
            await self.cut(demand)
            return await measure_gemms(self.tiers, compute_dtype(self.precision))

    async def _synchronize(self) -> None:
        async with self.exclusive():
            await self.tiers.run_ahead.drain()

    async def _reserve(self, demand: Demand) -> None:
        async with self.exclusive():
            await self.cut(demand)

    async def _store(self, tiles: Iterable[tuple[Tile, np.ndarray]] | AsyncGenerator[tuple[Tile, np.ndarray]]) -> None:
        async with self.exclusive():
            await self.fill(tiles)

    async def _read(self, tiles: list[Tile]) -> list[np.ndarray]:
        async with self.exclusive():
            return await self.copies(tiles)

    async def _release(self, tiles: list[Tile]) -> None:
        async with self.exclusive():
            self._schedules.forget(tiles)
            await self.tiers.run_ahead.settle()
            self.assembly.release(tiles)

    async def _clear(self, tiles: list[Tile]) -> None:
        async with self.exclusive():
            await self.empty(tiles)
