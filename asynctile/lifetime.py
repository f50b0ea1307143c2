"""From the opening of an engine to its end: threads, loop, tiers, BLAS limits, each undone in the reverse order.

Both blocking, in a thread (asynctile/loop/thread.py, in_thread), so that no cancellation can stop either half way. Covers what
all shares of an engine stand on; what they do while it is open is share.py's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.device.base import Device, Report
from asynctile.errors import DeviceError
from asynctile.events import Closing, Opening
from asynctile.hub import ENGINE, Hub, Tell
from asynctile.loop.background import Background
from asynctile.loop.thread import CLOSED, LoopThread, in_thread, may_wait
from asynctile.loop.turns import Turns
from asynctile.measure.trace import Trace
from asynctile.memory.tiers import Tiers
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
    tiers: of every share that stands. turns: of their jobs. trace: the last that was begun, also when it is over. failed: the
    first error among the tasks, after closing.
    """

    def __init__(
        self,
        device: Device,
        spill: SpillTier | None,
        make_loop: Callable[[], asyncio.AbstractEventLoop],
        report: Report | None,
    ) -> None:
        self.device = device
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
        #: opening has come to its end, well or not; so has closing
        self._settled, self._closed = threading.Event(), threading.Event()

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
        """`open`, in a thread; cancelled, however often, it leaves nothing open and raises CancelledError. After `claim`."""
        if await in_thread("opening", self.open, on_cancel=self.stop_opening, on_gone=self.abandon):
            await in_thread("closing", self.break_off)
            raise asyncio.CancelledError
        if not self.is_open:
            raise DeviceError("the engine was closed while it opened: make a new Engine to go on")

    async def end(self, kind: type[BaseException] | None) -> None:
        """`close`, in a thread, however often it is cancelled; see Engine.aclose. kind: of the error that ends the block."""
        if kind is not None and self.process != os.getpid():
            return
        self.check_process()
        if kind is not None and self._opener is not None and not may_wait(kind, self._opener):  # thrown away with its loop
            self.is_open = False
            self.abandon()
            return
        if self.loop is not None and self.loop.is_here():
            raise DeviceError(
                "the engine cannot be closed by a job that runs on it, since it waits for its jobs: close it from another loop"
            )
        self.is_open = False
        if await in_thread("closing", self.close if kind is None else self.break_off, on_cancel=self.hurry):
            raise asyncio.CancelledError
        failed, self.failed = self.failed, None
        if failed is not None and kind is None:
            raise failed

    def open(self) -> None:
        """Limit BLAS, lock the spill folder, start streams and loop, compile kernels. Blocks; undone whole if it fails.

        It is not open afterwards if it was to stop, or to close, meanwhile.
        """
        with self._lock:
            if self._is_closing:
                return
            self._is_opening = True
        try:
            with ExitStack() as undo:
                hold_one_thread()
                undo.callback(let_go)
                loop = LoopThread(self._make_loop)
                loop.start()
                undo.callback(loop.close)
                undo.callback(self._close_device)
                if self.spill is not None:
                    self.spill.open()
                self.device.start()
                if self.device.warm(self._reported, self._stop):
                    with self._lock:
                        self.loop, self._undo, self.is_open = loop, undo.pop_all(), not self._is_closing
        finally:
            if self.loop is None:
                self.hub.close()
            self._settled.set()

    def stop_opening(self) -> None:
        """From any thread: the kernels that are not compiled yet are not wanted any more."""
        self._stop.set()

    def close(self) -> None:
        """Wait for the background, end all jobs, run out what was enqueued, then undo what `open` did. Blocks.

        What still opens is stopped first. Whoever comes second waits for the first.
        """
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            self.is_open = False
        if not is_first:
            self._closed.wait()
            return
        try:
            self._close()
        finally:
            self.hub.close()
            self._closed.set()

    def hurry(self) -> None:
        """From any thread: closing shall not wait for the background but break it off."""
        if self.loop is not None:
            self.loop.post(self.background.cancel)

    def break_off(self) -> None:
        """`close`, in a hurry."""
        self.hurry()
        self.close()

    def abandon(self) -> None:
        """Whoever opens or closes the engine has gone, maybe with the loop: it is closed by a thread of its own."""
        self.stop_opening()
        threading.Thread(target=self.break_off, name="asynctile-closing", daemon=True).start()

    def _reported(self, kernel: str, ready: int, total: int) -> None:
        """Called while kernels are compiled."""
        if self._report is not None:
            self._report(kernel, ready, total)
        self.tell(Opening, kernel=kernel, ready=ready, total=total)

    def _close(self) -> None:
        self.stop_opening()
        if not self._is_opening:
            self._close_device()  # it was made, and has nothing else
            return
        self._settled.wait()
        if self.loop is None:
            return
        self.tell(Closing)
        try:
            asyncio.run_coroutine_threadsafe(self._wind_down(self.loop), self.loop.loop).result()
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
