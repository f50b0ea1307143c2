"""The inside of a share: a runtime runs jobs over the tiles that stand under the share's caps, one job at a time.

Models, trainers, servers and the commands take a `Runtime`; users see a `Share` (share.py). Jobs run as coroutines on the
device's own loop (asynctile/loop/thread.py) and streams, so the caller's loop stays free. Runtimes of one engine run side by
side, and each decides its moves from its own programs alone. The runtime of a lent share is in lent.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import numpy as np

from asynctile.collector import without_collections
from asynctile.device.base import Device
from asynctile.errors import DeviceError
from asynctile.execute.job import Job
from asynctile.execute.schedules import Schedules
from asynctile.hub import Tell
from asynctile.launch.assembly import Assembly
from asynctile.lifetime import Lifetime
from asynctile.loop.exclusive import Exclusive
from asynctile.loop.files import Files
from asynctile.loop.thread import LoopThread, Undo, may_wait
from asynctile.loop.turns import Turn
from asynctile.measure.statistics import Counters, Statistics, StepTraffic, snapshot, traffic
from asynctile.memory.tiers import TierOptions
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.storage.demand import Demand
from asynctile.storage.documents import finish
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from asynctile.streams.recorder import Begun
from asynctile.streams.stream import Stream

E = TypeVar("E", bound="Runtime")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Tiles and the host arrays that fill them; an async generator runs on the device's loop and is closed.
Values = Iterable[tuple[Tile, np.ndarray]] | AsyncGenerator[tuple[Tile, np.ndarray]]
_Work = Callable[Concatenate[E, P], Coroutine[Any, Any, T]]


def _from_any_loop(work: _Work[E, P, T]) -> _Work[E, P, T]:
    """Let a method be awaited from any loop: it runs as a job on the device's loop."""

    @wraps(work)
    async def asked(self: E, /, *args: P.args, **more: P.kwargs) -> T:
        return await self.call(work(self, *args, **more))

    return asked


class Runtime:
    """The tiles of one share and the jobs over them; `runtime_of(share)` returns it once the engine is being opened.

    life: the engine that the share belongs to. tell: sends the share's events. options: its caps. turn: its part in the turns
    between shares. file_stream: runs the work on files. plays: whether programs that repeat are played by compiled workers or
    graphs. tiers: where its tiles stand. assembly, schedules: what its jobs run on. busy: the lock that each job holds. counts:
    steps and requests so far, for `statistics`.
    """

    #: its name in messages
    what: ClassVar[str] = "the engine"

    def __init__(
        self, life: Lifetime, tell: Tell, options: TierOptions, turn: Turn, file_stream: Stream, plays: bool
    ) -> None:
        self.life = life
        self.tell = tell
        self.options = options
        self.turn = turn
        self.file_stream = file_stream
        self.plays = plays
        self.tiers = tiers = turn.tiers
        self.assembly = Assembly(tiers)
        self.schedules = Schedules(self.assembly, self.compute, lambda: self.plays)
        self.busy: Exclusive = Exclusive(self.what, tiers.run_ahead, tiers.caps.look)
        self.counts = Counters()
        life.tiers.append(tiers)
        tiers.beside = life.tiers
        life.dependents.add(self.schedules)

    @property
    def device(self) -> Device:
        """The first device of the engine; the others are like it."""
        return self.life.device

    @property
    def devices(self) -> int:
        """The number of devices of the engine."""
        return len(self.life.devices)

    @property
    def side_by_side(self) -> int:
        """How many devices compute at once: emulated ones share the cores."""
        workers = self.device.workers
        return self.devices if workers is None else min(self.devices, max(1, len(os.sched_getaffinity(0)) // workers.threads))

    @property
    def is_open(self) -> bool:
        """Whether the share takes work; from any thread. Never in a forked child of the process that opened the engine."""
        return self.life.is_open and self.life.process == os.getpid()

    @property
    def device_cap(self) -> int:
        """Cap in bytes on the memory that operations run in, on each device."""
        cap = self.tiers.top.arena.cap
        assert cap is not None
        return cap

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on the device's loop that the engine waits for before it closes. Called on that loop."""
        return self.life.background.spawn(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on the device's loop that an engine ends when it closes, like a caller's job. Called on that loop."""
        return self._open_loop().begin(work)

    def files(self, what: str) -> Files:
        """Return the file work of one save or load, on the device's loop. what: its name in messages."""
        return Files(self.file_stream, self.tiers.run_ahead, what)

    async def compute(self, work: Callable[P, R], *args: P.args, **more: P.kwargs) -> R:
        """Run Python that computes in a thread, on the device's loop, to its end even if cancelled.

        Meanwhile no garbage is collected. Not for work that may wait: the watchdog takes it for progress.
        """
        run_ahead = self.tiers.run_ahead
        run_ahead.computing += 1
        try:
            with without_collections():
                return await finish(asyncio.to_thread(work, *args, **more))
        finally:
            run_ahead.computing -= 1

    async def call(self, job: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        """Run a coroutine on the device's loop and await it from any loop. DeviceError once closed, and in a forked child.

        A cancelled caller passes the cancellation on to the job and waits for its end. undo: called on the device's loop with
        the job's result if the caller was cancelled, or gone with its loop, before it got the result.
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
        """Run `job`, which frees what a block held, to its end when the block ends; CancelledError afterwards. From any loop.

        kind: the type of the error that ends the block, or None. began_on: the loop on which the block began. If the block is
        thrown away with that loop, the job goes on by itself. Does nothing once the share is closed: all has ended with it.
        """

        async def whole() -> None:
            with suppress(DeviceError):  # closed meanwhile
                await self.call(job())

        loop = self.life.loop
        if loop is None or not self.is_open:
            return
        if may_wait(kind, began_on):
            await loop.call_whole(whole())
        else:
            loop.post(lambda: self.spawn(whole()))

    def _open_loop(self) -> LoopThread:
        """Return the loop that jobs run on; DeviceError once it takes no more."""
        return self.life.open_loop()

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Hold the share for one program, on the device's loop, in order of asking."""
        return self.life.turns.held(self.busy, self.turn)

    def rounds(self) -> AbstractAsyncContextManager[Callable[[bool], bool]]:
        """Hold the share for the programs of texts, one after another, on the device's loop.

        Gives a function that is called after each program with whether a token came, and says whether the next may follow.
        """
        return self.life.turns.rounds(self.busy, self.turn)

    def rest(self) -> None:
        """Let other shares compute until the next program begins; inside `rounds`, on the device's loop."""
        self.life.turns.end(self.turn)

    async def start(
        self,
        program: Program,
        demand: Demand,
        inputs: Mapping[str, np.ndarray],
        outputs: dict[str, np.ndarray] | None = None,
    ) -> Job:
        """Begin a run of `program`, played if it repeats; inside `exclusive`, on the device's loop.

        demand: of the program. Another program may have cut the arena for itself since the last run. inputs: values by name.
        outputs: arrays that the program's fetches fill. From here to the end of `exclusive` the share takes turns with
        others that have a job. BudgetError, before any work, if the caps are below the program's floor.
        """
        self.life.check_process()
        self.life.turns.begin(self.turn)
        job = await self.schedules.start(program, demand, inputs, {} if outputs is None else outputs)
        self.life.turns.renew(self.turn)
        if (recorder := self.life.recorder) is not None:
            recorder.put(Begun(self.tell.share, program))
        return job

    async def cut(self, demand: Demand) -> None:
        """Cut the arena for tiles of these sizes; inside `exclusive`, on the device's loop. BudgetError below the floor."""
        self.schedules.leave()
        await self.tiers.caps.cut(demand)

    async def fill(self, tiles: Values) -> None:
        """Fill persistent tiles from host arrays; inside `exclusive`, on the device's loop. BudgetError when a tier is full."""
        await self.tiers.run_ahead.drain()
        await self.assembly.put_all(tiles)

    async def empty(self, tiles: Iterable[Tile]) -> None:
        """Free the bytes of tiles that may be filled again; inside `exclusive`, on the device's loop.

        Programs that use the tiles stay known.
        """
        self.schedules.leave()
        await self.tiers.run_ahead.settle()
        self.assembly.release(tiles)

    async def copies(self, tiles: Iterable[Tile]) -> list[np.ndarray]:
        """Copy the newest bytes of several tiles; inside `exclusive`, on the device's loop."""
        await self.tiers.run_ahead.drain()
        return [await self.assembly.read(tile) for tile in tiles]

    @_from_any_loop
    async def launch(self, operation: Operation, number: Any = None) -> StreamEvent:
        """Run one operation outside a program; returns its event when it is enqueued. See Lane.perform.

        number: float64 array of length 1 that the operation reports into.
        """
        inputs = self.assembly.inputs
        while True:
            await inputs.enqueued(operation)  # outside `exclusive`, which the job that writes them may need
            async with self.exclusive():
                if inputs.missing(operation) is None:
                    self.schedules.leave()  # the player does not know this operation
                    return await self.assembly.launch(operation, number)

    @_from_any_loop
    async def synchronize(self) -> None:
        """Wait until everything that was launched has run; raises its first error."""
        async with self.exclusive():
            await self.tiers.run_ahead.drain()

    @_from_any_loop
    async def reserve(self, demand: Demand) -> None:
        """Cut the arena for tiles of these sizes; BudgetError below the floor, before anything moves."""
        async with self.exclusive():
            await self.cut(demand)

    @_from_any_loop
    async def store(self, tiles: Values, demand: Demand | None = None) -> None:
        """Fill persistent tiles from host arrays, which are copied. BudgetError when a tier is full.

        demand: what to cut the arena for first. After a `reserve`, a share that opens would cut the empty arena anew.
        """
        async with self.exclusive():
            if demand is not None:
                await self.cut(demand)
            await self.fill(tiles)

    async def read(self, tile: Tile) -> np.ndarray:
        """Copy a tile's newest bytes."""
        return (await self.read_all([tile]))[0]

    @_from_any_loop
    async def read_all(self, tiles: Iterable[Tile]) -> list[np.ndarray]:
        """Copy the newest bytes of several tiles."""
        async with self.exclusive():
            return await self.copies(tiles)

    @_from_any_loop
    async def release(self, tiles: Iterable[Tile]) -> None:
        """Free tiles that will not be used again, and forget the programs that use them."""
        tiles = list(tiles)
        async with self.exclusive():
            self.schedules.forget(tiles)
            await self.tiers.run_ahead.settle()
            self.assembly.release(tiles)

    def statistics(self) -> Statistics:
        """Return what the share holds, has moved and waits for; from any thread, in microseconds, while anything runs."""
        return snapshot(self.tell.share, self.assembly, self.busy.waiting, self.counts, self.turn)

    def traffic(self) -> StepTraffic:
        """Return the part of `statistics` that a step reports."""
        return traffic(self.assembly)
