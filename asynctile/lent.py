"""What an engine lends of itself: a share with caps of its own, which ends while the engine goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from asynctile.errors import DeviceError
from asynctile.hub import Tell
from asynctile.lifetime import Lifetime
from asynctile.loop.thread import LoopThread, Undo, may_wait
from asynctile.memory.tiers import TierOptions
from asynctile.share import Share
from asynctile.storage.region import SpillRegion

T = TypeVar("T")


ENDED = "the share of the engine has ended: use it inside 'async with engine.share(...)'"


class Lending(AbstractAsyncContextManager[Share, None]):
    """The block of `Engine.share`. lend, take_back: what is done on the device's loop at its begin and at its end.

    Not made of a generator: a loop that ends closes each generator by itself, so that one inside a caller's would end twice.
    """

    def __init__(
        self,
        engine: Share,
        life: Lifetime,
        lend: Callable[[], Coroutine[Any, Any, LentShare]],
        take_back: Undo[LentShare],
    ) -> None:
        self._engine, self._life, self._lend, self._take_back = engine, life, lend, take_back

    async def __aenter__(self) -> Share:
        self._here = asyncio.get_running_loop()
        self._part = await self._engine.call(self._lend(), undo=self._take_back)
        return self._part

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        life, part = self._life, self._part
        if kind is not None and not may_wait(kind, self._here):
            if life.loop is not None:
                life.loop.post(lambda: self._engine.spawn(self._take_back(part)))
        elif life.is_open and (kind is None or life.process == os.getpid()):
            await life.open_loop().call_whole(self._take_back(part))


class LentShare(Share):
    """What `Engine.share` lends. region: of the spill file, None for none. options: its caps."""

    def __init__(
        self,
        life: Lifetime,
        what: str,
        tell: Tell,
        precision: str,
        prefetch: int,
        region: SpillRegion | None,
        options: TierOptions,
    ) -> None:
        super().__init__(life, what, tell, precision, prefetch)
        self.options = options
        self._region = region
        self._is_ending = self._has_ended = False
        self._under_way = 0
        self._idle: asyncio.Future[None] | None = None

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
        except GeneratorExit:  # the caller is thrown away, the job goes on
            raise
        except BaseException:
            job.close()  # it may never have begun
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = super().begin(self._counted(work))
        task.add_done_callback(lambda _: work.close())  # it may never have begun
        return task

    async def end(self) -> None:
        """On the device's loop: wait for what runs, and for saves, then free every tile. It is of no use afterwards.

        StalledError if something hangs: whatever that may still write to then keeps its place, and the engine goes without.
        """
        self._is_ending = True
        tiers = self.tiers
        while self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await tiers.run_ahead.told(self._idle, lambda: f"{self._what} waits for {self._under_way} calls that run on it")
        self._has_ended = True  # now: what was asked for before, and begins during the waits below, would find its tiles freed
        await tiers.caps.returned()
        await tiers.run_ahead.settle()
        if tiers.run_ahead.stalled is not None:
            raise tiers.run_ahead.stalled
        self._schedules.leave()
        for tier in tiers.from_the_top():
            for residency in list(tier.ledger.resident):
                tier.release(residency)
        self._schedules.close()
        if tiers.player is not None:
            await self.compute(tiers.player.close)
        tiers.close()
        self._life.tiers.remove(tiers)
        if self._region is not None:
            self._region.give_back()

    async def _counted(self, job: Coroutine[Any, Any, T]) -> T:
        """On the device's loop: `job`, which `end` waits for."""
        if self._has_ended:  # meanwhile
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
        if self._is_ending and not loop.is_here():  # what runs there may go on
            raise DeviceError(ENDED)
        return loop
