"""From the opening of an engine to its end: threads, loop, tiers, BLAS limits, each undone in the reverse order.

Both blocking, in a thread of their own (asynctile/loop/keeper.py), so that no cancellation can stop either half way. Covers
what all shares of an engine stand on; what they do while it is open is share.py's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.device.base import Device, Report
from asynctile.errors import DeviceError
from asynctile.events import Closing, Opening
from asynctile.hub import ENGINE, Hub, Tell
from asynctile.kernels.cpu import blas_memory
from asynctile.loop.background import Background
from asynctile.loop.keeper import Keeper, ended
from asynctile.loop.thread import CLOSED, LoopThread, may_wait
from asynctile.loop.turns import Turns
from asynctile.measure.known import Run
from asynctile.measure.trace import Trace
from asynctile.memory.tiers import Tiers
from asynctile.schedule.rates import Rates
from asynctile.storage.limits import expect_room_to_open
from asynctile.storage.spill import SpillTier

logger = logging.getLogger(__name__)

#: After a stall, closing waits this long for each thing that hangs, and leaves it behind.
LAST_PATIENCE_S = 1.0


class Dependent(Protocol):
    """What is of no use without the engine, such as the batches of a run, or schedules on its memory."""

    def close(self) -> None: ...


class Lifetime:
    """device, spill: what opens and closes. loop: the device's own, from `open` on. process: that opened it, None before.

    is_open: from the end of opening to the beginning of closing. hub: the readers of what is told. tell: for the engine itself.
    background: the tasks on the loop that closing waits for. dependents: closed with the engine, unless they have ended before.
    rates: of the machine. find_rates: called while it opens, with what runs a coroutine on the loop, for others; None for none.
    tiers: of every share that stands. turns: of their jobs. trace: the last that was begun, also when it is over. failed: the
    first error among the tasks, after closing.
    """

    def __init__(
        self,
        device: Device,
        spill: SpillTier | None,
        make_loop: Callable[[], asyncio.AbstractEventLoop],
        report: Report | None,
        rates: Rates,
        find_rates: Callable[[Run], Rates] | None,
    ) -> None:
        self.device = device
        self.rates = rates
        self._find_rates = find_rates
        self.spill = spill
        self.loop: LoopThread | None = None
        #: a forked child has its objects, and none of its threads
        self.process: int | None = None
        self.is_open = False
        self.hub = Hub()
        self.tell = Tell(self.hub, ENGINE)
        self.background = Background()
        self.dependents: WeakSet[Dependent] = WeakSet()
        self.tiers: list[Tiers] = []
        self.turns = Turns(lambda: self.device.streams())  # of the device that stands: stress puts in one with its own workers
        self.trace: Trace | None = None
        self.failed: Exception | None = None
        self._make_loop = make_loop
        #: the loop from which it was opened
        self._opener: asyncio.AbstractEventLoop | None = None
        self._report = report
        self._undo = ExitStack()
        self._stop = threading.Event()
        #: of the decisions who opens and who closes; reentrant, since the collector may throw either away anywhere
        self._lock = threading.RLock()
        self._is_opening = self._is_closing = False
        self._keeper = Keeper()
        #: the end of closing, with its error
        self._closed: Future[None] = Future()

    def claim(self) -> None:
        """Whoever calls this may open it. DeviceError for all but the first, and once it was closed."""
        with self._lock:
            if self.process is not None or self._is_closing:
                raise DeviceError("an engine opens once: make a new Engine to go on")
            self.process, self._opener = os.getpid(), asyncio.get_running_loop()

    def check_process(self) -> None:
        """DeviceError in a forked child of the process that opened the engine: it would wait there for threads that are not."""
        if self.process is not None and self.process != os.getpid():
            raise DeviceError(
                f"the engine was opened in process {self.process} and this is its forked child {os.getpid()}, which has "
                "none of its threads; open an Engine of its own here"
            )

    def open_loop(self) -> LoopThread:
        """The loop; DeviceError while the engine is not open, for all but those who run on it."""
        self.check_process()
        if self.loop is None or not (self.is_open or self.loop.is_here()):
            raise DeviceError(CLOSED)
        return self.loop

    async def begin(self) -> None:
        """`open`, in a thread; if it fails or is cancelled, however often, it leaves nothing open. After `claim`."""
        try:
            with self._lock:
                opened = self._closed if self._is_closing else self._keeper.first(self.open)
            if await ended(opened, on_cancel=self.stop_opening, on_gone=self.break_off):
                raise asyncio.CancelledError
            opened.result()
            if not self.is_open:
                raise DeviceError("the engine was closed while it opened: make a new Engine to go on")
        except (Exception, asyncio.CancelledError):
            self.break_off()
            await self._whole()
            raise

    async def end(self, kind: type[BaseException] | None) -> None:
        """`close`, in a thread, however often it is cancelled; see Engine.aclose. kind: of the error that ends the block."""
        if kind is not None and self.process != os.getpid():
            return
        self.check_process()
        if kind is not None and self._opener is not None and not may_wait(kind, self._opener):  # thrown away with its loop
            self.break_off()
            return
        if self.loop is not None and self.loop.is_here():
            raise DeviceError(
                "the engine cannot be closed by a job that runs on it, since it waits for its jobs: close it from another loop"
            )
        is_first = self.close() if kind is None else self.break_off()
        cancelled = await self._whole(on_cancel=self.hurry)
        if is_first:
            self._closed.result()
        if cancelled:
            raise asyncio.CancelledError
        failed, self.failed = self.failed, None
        if failed is not None and kind is None:
            raise failed

    async def _whole(self, on_cancel: Callable[[], object] = bool) -> bool:
        """Wait for the end of closing, however often cancelled; whether it was."""
        cancelled = await ended(self._closed, on_cancel)
        self._keeper.join()
        return cancelled

    def open(self) -> None:
        """Limit BLAS and map its memory, lock the spill folder, start streams and loop, compile kernels. Blocks; undone whole
        if it fails.

        It is not open afterwards if it was to stop, or to close, meanwhile.
        """
        with self._lock:
            if self._is_closing:
                return
            self._is_opening = True
        with ExitStack() as undo:
            hold_one_thread()
            undo.callback(let_go)
            if self.device.workers is not None:
                blas_memory.hold(self.device.workers.threads)
                undo.callback(blas_memory.let_go, self.device.workers.threads)
            expect_room_to_open()
            loop = LoopThread(self._make_loop)
            loop.start()
            undo.callback(loop.close)
            undo.callback(self._close_device)
            if self.spill is not None:
                self.spill.open()
            self.device.start()
            if self.device.warm(self._reported, self._stop):
                if self._find_rates is not None:
                    self.rates = self._find_rates(lambda work: asyncio.run_coroutine_threadsafe(work, loop.loop).result())
                with self._lock:
                    self.loop, self._undo, self.is_open = loop, undo.pop_all(), not self._is_closing

    def stop_opening(self) -> None:
        """From any thread: the kernels that are not compiled yet are not wanted any more."""
        self._stop.set()

    def close(self) -> bool:
        """Let the thread wait for the background, end all jobs, run out what was enqueued, then undo what `open` did.

        From any thread, and not awaited here. What still opens is stopped first. False for whoever comes second.
        """
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            self.is_open = False
            self.stop_opening()
            if is_first:
                self._keeper.last(self._close, self._closed)
        return is_first

    def hurry(self) -> None:
        """From any thread: closing shall not wait for the background but break it off."""
        if self.loop is not None:
            self.loop.post(self.background.cancel)

    def break_off(self) -> bool:
        """`close`, in a hurry."""
        self.hurry()
        return self.close()

    def _reported(self, kernel: str, ready: int, total: int) -> None:
        """Called while kernels are compiled."""
        if self._report is not None:
            self._report(kernel, ready, total)
        self.tell(Opening, kernel=kernel, ready=ready, total=total)

    def _close(self) -> None:
        """In the thread, behind `open`."""
        try:
            if not self._is_opening:
                self._close_device()  # it was made, and has nothing else
            elif self.loop is not None:
                self._close_all(self.loop)
        finally:
            self.hub.close()

    def _close_all(self, loop: LoopThread) -> None:
        self.tell(Closing)
        try:
            asyncio.run_coroutine_threadsafe(self._wind_down(loop), loop.loop).result()
            for dependent in list(self.dependents):
                dependent.close()
        finally:
            self._undo.close()
            self._end_trace()
            logger.info("the engine on %s is closed", self.device.name)

    def _end_trace(self) -> None:
        """What was traced is over. Nobody is there who asked how its file is: a log is."""
        if self.trace is not None and self.trace.goes_on:
            try:
                self.trace.stop()
            except OSError as error:
                logger.warning("%s", error)

    async def _wind_down(self, loop: LoopThread) -> None:
        """On its loop. Every wait here ends: what it waits for is under the watchdog."""
        self.failed = await self.background.end()
        self.background.cancel()  # what a job may spawn in its last turn
        self.turns.close()
        await loop.end_jobs()
        await self.background.end()
        for tiers in self.tiers:
            await tiers.run_ahead.settle()

    def _close_device(self) -> None:
        """End the streams, let the memory and the spill folder go. Blocks."""
        patience_s = LAST_PATIENCE_S if any(tiers.run_ahead.hangs for tiers in self.tiers) else None
        try:
            for tiers in self.tiers:
                if tiers.player is not None:
                    tiers.player.close(patience_s)
            self.device.close(patience_s)
        finally:
            for tiers in self.tiers:
                tiers.close()
            if self.spill is not None:
                self.spill.close(patience_s)
