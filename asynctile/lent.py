"""Shares that an engine lends: each has caps of its own and ends while the engine goes on.

`Lender` takes the caps from the engine and gives them back, `Lending` is the block around that, and `LentRuntime` runs the
jobs of a lent share and waits for them at its end.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from asynctile.errors import DeviceError
from asynctile.hub import ENGINE, Tell
from asynctile.loop.thread import LoopThread, Undo, may_wait, under_shield
from asynctile.loop.turns import Turn
from asynctile.memory.tiers import Tiers
from asynctile.runtime import Runtime
from asynctile.share import Share
from asynctile.storage.input import shown
from asynctile.storage.region import SpillRegion
from asynctile.streams.stall import called
from asynctile.streams.stream import Stream

T = TypeVar("T")

ENDED = "the share of the engine has ended: use it inside 'async with engine.share(...)'"


class LentRuntime(Runtime):
    """The runtime of a lent share, whose spill file is a region of the engine's."""

    what: ClassVar[str] = "its share of the engine"

    _is_ending = _has_ended = False
    #: calls that run, and the future of the end that waits for them
    _under_way = 0
    _idle: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return super().is_open and not self._is_ending

    async def call(self, job: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        try:
            self._open_loop()
        except DeviceError:
            job.close()
            raise
        try:
            return await super().call(self._counted(job), undo)
        except GeneratorExit:  # the caller is gone, the job goes on
            raise
        except BaseException:
            job.close()  # it may never have begun
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = super().begin(self._counted(work))
        task.add_done_callback(lambda _: work.close())  # it may never have begun
        return task

    async def end(self) -> None:
        """Wait for running jobs and for saves, then free every tile, on the device's loop. The share is of no use afterwards.

        StalledError if something hangs: the memory that it may still write to keeps its place, and the engine goes without.
        """
        self._is_ending = True
        tiers = self.tiers
        while self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await tiers.run_ahead.told(self._idle, lambda: f"{self.what} waits for {self._under_way} calls that run on it")
        self._has_ended = True  # now: a call made before, which begins during the waits below, would find no tiles
        await tiers.caps.returned()
        await tiers.run_ahead.settle()
        if tiers.run_ahead.stalled is not None:
            raise tiers.run_ahead.stalled
        self.schedules.leave()
        for tier in tiers.from_the_top():
            for residency in list(tier.ledger.resident):
                tier.release(residency)
        self.schedules.close()
        if tiers.player is not None:
            await self.compute(tiers.player.close)
        tiers.close()
        self.life.tiers.remove(tiers)
        if isinstance(tiers.spill, SpillRegion):
            tiers.spill.give_back()

    def _counted(self, job: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return a job that `end` waits for, with the name that `job` has in messages."""
        counted: Any = self._count(job)  # mypy knows no name of a coroutine
        counted.__qualname__ = getattr(job, "__qualname__", counted.__qualname__)
        return counted

    async def _count(self, job: Coroutine[Any, Any, T]) -> T:
        """Run `job`, which `end` waits for, on the device's loop."""
        if self._has_ended:  # since the call was made
            job.close()
            raise DeviceError(ENDED)
        self._under_way += 1
        try:
            return await job
        finally:
            self._under_way -= 1
            if not self._under_way and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    def _open_loop(self) -> LoopThread:
        loop = super()._open_loop()
        if self._is_ending and not loop.is_here():  # jobs that run there may go on
            raise DeviceError(ENDED)
        return loop


class Lender:
    """Lends shares of an engine. engine: the engine's runtime. transfers: the stream of its spill file, None for none.

    lent: the shares that stand, oldest first, with their runtimes.
    """

    def __init__(self, engine: Runtime, transfers: Stream | None) -> None:
        self.engine = engine
        self._transfers = transfers
        self.lent: dict[Share, LentRuntime] = {}
        self._numbers = itertools.count(1)

    @called("Engine.share")
    async def lend(self, name: str | None, sizes: Sequence[int], weight: float, interactive: bool) -> Share:
        """Lend a share whole, or nothing at all, on the device's loop; errors as those of Engine.share.

        sizes: bytes of device memory, RAM and spill file. name, weight, interactive: as in Engine.share.
        """
        on_device, in_ram, on_disk = sizes
        engine, caps, spill = self.engine, self.engine.tiers.caps, self.engine.tiers.spill
        async with engine.exclusive():
            tell = Tell(engine.life.hub, self._named(name))
            engine.schedules.leave()
            region = SpillRegion(spill, on_disk) if spill is not None and on_disk else None
            is_lent = False
            try:
                cancelled = await under_shield(caps.cede(on_device, in_ram))
                is_lent = True
                if cancelled:
                    raise asyncio.CancelledError
                options = replace(engine.options, device_memory=on_device, host_memory=in_ram, host_remedy="")
                tiers = Tiers(engine.tiers.devices, region, self._transfers, options, tell=tell)
                turn = Turn(tiers, weight, interactive=interactive)
                runtime = LentRuntime(engine.life, tell, options, turn, engine.file_stream, engine.plays)
                share = Share(engine.life, tell, options, runtime)
                self.lent[share] = runtime
                return share
            except BaseException:
                if is_lent:
                    await under_shield(caps.regain(on_device, in_ram))
                if region is not None:
                    region.give_back()
                raise

    @called("Engine.share")
    async def take_back(self, share: Share) -> None:
        """End the share's jobs, free its tiles and take its caps back, on the device's loop. Not to be cancelled."""
        runtime = self.lent[share]
        try:
            await runtime.end()
        finally:
            del self.lent[share]
        async with self.engine.exclusive():
            self.engine.schedules.leave()
            await self.engine.tiers.caps.regain(runtime.options.device_memory or 0, runtime.options.host_memory or 0)

    def _named(self, name: str | None) -> str:
        """Return the name of a new share. ValueError if another has that name, TypeError unless it is a string or None."""
        if name is not None and not (isinstance(name, str) and name):
            raise TypeError(f"name is {shown(name)}: expected a string such as 'chat', or None for a free name")
        taken = {ENGINE, *(share.name for share in self.lent)}
        if name in taken:
            raise ValueError(f"another share is named {name!r}: expected a name other than {', '.join(sorted(taken))}")
        return name or next(free for number in self._numbers if (free := f"share-{number}") not in taken)


class Lending(AbstractAsyncContextManager[Share, None]):
    """The block of `Engine.share`. lend: lends the share at its begin, on the device's loop; `lender` takes it back.

    Not made of a generator: an event loop that ends closes each generator by itself, so one inside a caller's would end twice.
    """

    def __init__(self, lender: Lender, lend: Callable[[], Coroutine[Any, Any, Share]]) -> None:
        self._lender, self._lend = lender, lend

    async def __aenter__(self) -> Share:
        self._here = asyncio.get_running_loop()
        self._share = await self._lender.engine.call(self._lend(), undo=self._lender.take_back)
        return self._share

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, take_back, share = self._lender.engine, self._lender.take_back, self._share
        if kind is not None and not may_wait(kind, self._here):
            if engine.life.loop is not None:
                engine.life.loop.post(lambda: engine.spawn(take_back(share)))
        elif engine.life.is_open and (kind is None or engine.life.process == os.getpid()):
            await engine.life.open_loop().call_whole(take_back(share))
