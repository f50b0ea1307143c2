"""Opening and closing an engine: its threads, event loop, tiers and BLAS limits, undone in reverse order.

Both block in a thread of their own (asynctile/loop/keeper.py), so no cancellation can stop either half way. A lifetime holds
what all shares of an engine have in common; the work they do while it is open is in runtime.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet

from asynctile.blas_threads import hold_one_thread, let_go
from asynctile.device.base import Device, Report, name_of, streams_of
from asynctile.errors import DeviceError
from asynctile.events import Closing, Opening
from asynctile.hub import ENGINE, Hub, Tell
from asynctile.kernels.cpu import blas_memory
from asynctile.loop.background import Background
from asynctile.loop.keeper import Keeper, ended
from asynctile.loop.thread import CLOSED, NOT_OPENED, LoopThread, may_wait
from asynctile.loop.turns import Turns
from asynctile.measure.known import Run
from asynctile.measure.trace import Trace
from asynctile.memory.tiers import Tiers
from asynctile.schedule.rates import Rates
from asynctile.storage.limits import expect_room_to_open
from asynctile.storage.spill import SpillTier
from asynctile.streams.event import TracedRunner
from asynctile.streams.recorder import Recorder

logger = logging.getLogger(__name__)

#: After a stall, closing waits this long for each stream that hangs and then leaves it behind.
LAST_PATIENCE_S = 1.0


class Dependent(Protocol):
    """An object that is useless without the engine, such as the batches of a run, or schedules on its memory."""

    def close(self) -> None: ...


class Lifetime:
    """The life of one engine, from opening to closing, and the parts that its shares have in common.

    devices, spill: opened and closed with it; spill is None without a spill folder. precision: as given to Engine. make_loop:
    makes its event loop. report: called while kernels are compiled. rates: of the machine. find_rates: called while it opens,
    with a function that runs a coroutine on the loop; returns the rates to replace `rates`. None: `rates` stay.

    loop: the devices' own, None before it is opened. process: the process that opened it, None before. is_open: from the end of
    opening to the beginning of closing. hub: the readers of its events. tell: sends events of the engine itself. background:
    the tasks on the loop that closing waits for. dependents: closed with the engine, unless they have ended before. tiers: of
    every share that stands. turns: between their jobs. trace: the last one begun, also when it is over. failed: the first error
    among the background tasks, after closing.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        precision: str,
        spill: SpillTier | None,
        make_loop: Callable[[], asyncio.AbstractEventLoop],
        report: Report | None,
        rates: Rates,
        find_rates: Callable[[Run], Rates] | None,
    ) -> None:
        self.devices = tuple(devices)
        self.precision = precision
        self.rates = rates
        self._find_rates = find_rates
        self.spill = spill
        self.loop: LoopThread | None = None
        #: to tell a forked child, which has the engine's objects and none of its threads
        self.process: int | None = None
        self.is_open = False
        self.hub = Hub()
        self.tell = Tell(self.hub, ENGINE)
        self.background = Background()
        self.dependents: WeakSet[Dependent] = WeakSet()
        self.tiers: list[Tiers] = []
        self.turns = Turns(self.streams)
        self.trace: Trace | None = None
        self.failed: Exception | None = None
        self._make_loop = make_loop
        #: the loop from which it was opened
        self._opener: asyncio.AbstractEventLoop | None = None
        self._report = report
        self._undo = ExitStack()
        self._stop = threading.Event()
        #: guards the decisions who opens and who closes; reentrant, since the garbage collector may end either caller anywhere
        self._lock = threading.RLock()
        self._is_opening = self._is_closing = False
        self._keeper = Keeper()
        #: the end of closing, with its error
        self._closed: Future[None] = Future()

    def claim(self) -> None:
        """Reserve the opening for the caller. DeviceError for every caller but the first, and once the engine was closed."""
        with self._lock:
            if self.process is not None or self._is_closing:
                raise DeviceError("an engine opens once: make a new Engine to go on")
            self.process, self._opener = os.getpid(), asyncio.get_running_loop()

    @property
    def device(self) -> Device:
        """The first device, on which single operations run."""
        return self.devices[0]

    @property
    def device_name(self) -> str:
        """The name of all its devices."""
        return name_of(self.devices)

    def streams(self) -> list[TracedRunner]:
        """Return the streams of all devices."""
        return streams_of(self.devices)

    @property
    def recorder(self) -> Recorder | None:
        """The recorder that work is reported to while a trace goes on, else None."""
        return self.trace.recorder if self.trace is not None and self.trace.goes_on else None

    def check_process(self) -> None:
        """Raise DeviceError in a forked child of the process that opened the engine, which has none of its threads."""
        if self.process is not None and self.process != os.getpid():
            raise DeviceError(
                f"the engine was opened in process {self.process}, of which this one, {os.getpid()}, is a forked child without "
                "the engine's threads; open an Engine of its own here"
            )

    def open_loop(self) -> LoopThread:
        """Return the loop; DeviceError while the engine is not open, except for callers that run on the loop."""
        self.check_process()
        if self.loop is None or not (self.is_open or self.loop.is_here()):
            raise self.not_open()
        return self.loop

    def not_open(self) -> DeviceError:
        """Return the error for a caller who needs the engine open: it never was, or it was closed."""
        return DeviceError(CLOSED if self._is_closing else NOT_OPENED)

    async def begin(self) -> None:
        """Run `open` in a thread, after `claim`. If it fails or is cancelled, however often, it leaves nothing open."""
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
        """Run `close` in a thread and wait for it, however often this is cancelled; see Engine.aclose.

        kind: the type of the error that ends the engine's block, or None.
        """
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
        """Wait for the end of closing, however often this is cancelled; return whether it was."""
        cancelled = await ended(self._closed, on_cancel)
        self._keeper.join()
        return cancelled

    def open(self) -> None:
        """Limit BLAS and map its memory, start the loop, lock the spill folder, start the streams, compile kernels. Blocks.

        A failure undoes all of it. The engine is not open afterwards if it was told to stop or to close meanwhile.
        """
        with self._lock:
            if self._is_closing:
                return
            self._is_opening = True
        with ExitStack() as undo:
            hold_one_thread()
            undo.callback(let_go)
            threads = sum(device.workers.threads for device in self.devices if device.workers is not None)
            blas_memory.hold(threads)
            undo.callback(blas_memory.let_go, threads)
            expect_room_to_open()
            loop = LoopThread(self._make_loop)
            loop.start()
            undo.callback(loop.close)
            undo.callback(self._close_devices)
            if self.spill is not None:
                self.spill.open()
            for device in self.devices:
                device.start()
            if all(device.warm(self._reported, self._stop) for device in self.devices):
                if self._find_rates is not None:
                    self.rates = self._find_rates(lambda work: asyncio.run_coroutine_threadsafe(work, loop.loop).result())
                with self._lock:
                    self.loop, self._undo, self.is_open = loop, undo.pop_all(), not self._is_closing

    def stop_opening(self) -> None:
        """Stop compiling kernels; from any thread."""
        self._stop.set()

    def close(self) -> bool:
        """Begin to close in the thread: wait for the background, end all jobs, drain the enqueued work, undo `open`.

        From any thread; returns at once. An opening under way is stopped first. Returns False if closing had begun before.
        """
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            self.is_open = False
            self.stop_opening()
            if is_first:
                self._keeper.last(self._close, self._closed)
        return is_first

    def hurry(self) -> None:
        """Cancel the background tasks, so that closing does not wait for them; from any thread."""
        if self.loop is not None:
            self.loop.post(self.background.cancel)

    def break_off(self) -> bool:
        """Begin to close without waiting for the background; returns as `close` does."""
        self.hurry()
        return self.close()

    def _reported(self, kernel: str, ready: int, total: int) -> None:
        """Pass on how many kernels are compiled."""
        if self._report is not None:
            self._report(kernel, ready, total)
        self.tell(Opening, kernel=kernel, ready=ready, total=total)

    def _close(self) -> None:
        """Close, in the thread, after `open` has returned."""
        try:
            if not self._is_opening:
                self._close_devices()  # nothing else was made
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
            logger.info("the engine on %s is closed", self.device_name)

    def _end_trace(self) -> None:
        """End a trace that goes on. An error of its file goes to the log: no caller is there to get it."""
        if self.trace is not None and self.trace.goes_on:
            try:
                self.trace.stop()
            except OSError as error:
                logger.warning("%s", error)

    async def _wind_down(self, loop: LoopThread) -> None:
        """End all tasks and drain the enqueued work, on the loop. Every wait here ends, since the watchdog covers it."""
        self.failed = await self.background.end()
        self.background.cancel()  # tasks that a job may spawn in its last turn
        self.turns.close()
        await loop.end_jobs()
        await self.background.end()
        for tiers in self.tiers:
            await tiers.run_ahead.settle()

    def _close_devices(self) -> None:
        """End the streams, free the memory and close the spill folder, each even if another fails. Blocks."""
        patience_s = LAST_PATIENCE_S if any(tiers.run_ahead.hangs for tiers in self.tiers) else None
        with ExitStack() as closing:  # from its end
            if self.spill is not None:
                closing.callback(self.spill.close, patience_s)
            for tiers in reversed(self.tiers):
                closing.callback(tiers.close)
            for device in reversed(self.devices):
                closing.callback(device.close, patience_s)
            for tiers in reversed(self.tiers):
                if tiers.player is not None:
                    closing.callback(tiers.player.close, patience_s)
