"""From the opening of an engine to its end: threads, loop, tiers, BLAS limits, each undone in the reverse order.

Both blocking, for a thread (asynctile/loop/thread.py, in_thread), so that no cancellation can stop either half way. Covers what
all shares of an engine stand on; what they do while it is open is share.py's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.device.base import Device, Report
from asynctile.errors import DeviceError
from asynctile.loop.background import Background
from asynctile.loop.thread import CLOSED, LoopThread
from asynctile.memory.tiers import Tiers
from asynctile.storage.spill import SpillTier

#: After a stall, closing waits this long for each thing that hangs, and leaves it behind.
LAST_PATIENCE_S = 1.0


class Dependent(Protocol):
    """What is of no use without the engine, such as the batches of a run, or schedules on its memory."""

    def close(self) -> None: ...


class Lifetime:
    """device, spill: what opens and closes. loop: the device's own, from `open` on. process: that opened it, None before.

    background: the tasks on the loop that closing waits for. dependents: closed with the engine, unless they have ended before.
    tiers: of every share that stands. failed: the first error among the tasks, after closing.
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
        self.background = Background()
        self.dependents: WeakSet[Dependent] = WeakSet()
        self.tiers: list[Tiers] = []
        self.failed: Exception | None = None
        self._make_loop = make_loop
        self._report = report
        self._undo = ExitStack()
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._is_ready = self._is_abandoned = False

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

    def open(self) -> None:
        """Limit BLAS, lock the spill folder, start streams and loop, compile kernels. Blocks; undone whole if it fails.

        CancelledError if it was told to stop while kernels were compiled.
        """
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
            if not self.device.warm(self._report, self._stop):
                raise asyncio.CancelledError
            self.loop, self._undo = loop, undo.pop_all()
        with self._lock:
            self._is_ready = True
            abandoned = self._is_abandoned
        if abandoned:
            self.break_off()

    def stop_opening(self) -> None:
        """From any thread: the kernels that are not compiled yet are not wanted any more."""
        self._stop.set()

    def close(self) -> None:
        """Wait for the background, end all jobs, run out what was enqueued, then undo what `open` did. Blocks."""
        assert self.loop is not None
        try:
            asyncio.run_coroutine_threadsafe(self._wind_down(self.loop), self.loop.loop).result()
            for dependent in list(self.dependents):
                dependent.close()
        finally:
            self._undo.close()

    def hurry(self) -> None:
        """From any thread: closing shall not wait for the background but break it off."""
        if self.loop is not None:
            self.loop.post(self.background.cancel)

    def break_off(self) -> None:
        """`close`, in a hurry."""
        self.hurry()
        self.close()

    def abandon(self) -> None:
        """Whoever opens the engine has gone: close it as soon as it is open."""
        self.stop_opening()
        with self._lock:
            first, self._is_abandoned = not self._is_abandoned, True
            if first and self._is_ready:
                threading.Thread(target=self.break_off, name="asynctile-closing", daemon=True).start()

    async def _wind_down(self, loop: LoopThread) -> None:
        """On its loop. Every wait here ends: what it waits for is under the watchdog."""
        self.failed = await self.background.end()
        self.background.cancel()  # what a job may spawn in its last turn
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
