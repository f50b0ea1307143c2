"""From the opening of an engine to its end: threads, loop, tiers, BLAS limits, each undone in the reverse order.

Both blocking, for a thread (loop.py, in_thread), so that no cancellation can stop either half way. What an engine does
while it is open is engine.py's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.device.base import Report
from asynctile.loop.background import Background
from asynctile.loop.thread import LoopThread
from asynctile.run.assembly import Tiers


class Dependent(Protocol):
    """What is of no use without the engine, such as the batches of a run."""

    def close(self) -> None: ...


class Lifetime:
    """loop: the device's own, from `open` on. background: the tasks on it that closing waits for. dependents: closed with it.

    failed: the first error among them, after closing.
    """

    def __init__(
        self,
        tiers: Tiers,
        make_loop: Callable[[], asyncio.AbstractEventLoop],
        report: Report | None,
        dependents: WeakSet[Dependent],
    ) -> None:
        self.loop: LoopThread | None = None
        self.background = Background()
        self._tiers = tiers
        self._make_loop = make_loop
        self._report = report
        self._dependents = dependents
        self._undo = ExitStack()
        self.failed: Exception | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._is_open = self._is_abandoned = False

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
            undo.callback(self._tiers.close)
            self._tiers.open()
            if not self._tiers.device.warm(self._report, self._stop):
                raise asyncio.CancelledError
            self.loop, self._undo = loop, undo.pop_all()
        with self._lock:
            self._is_open = True
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
            for dependent in list(self._dependents):
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
            if first and self._is_open:
                threading.Thread(target=self.break_off, name="asynctile-closing", daemon=True).start()

    async def _wind_down(self, loop: LoopThread) -> None:
        """On its loop. Every wait here ends: what it waits for is under the watchdog."""
        self.failed = await self.background.end()
        self.background.cancel()  # what a job may spawn in its last turn
        await loop.end_jobs()
        await self.background.end()
        await self._tiers.window.settle()
