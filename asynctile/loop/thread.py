"""An event loop in a thread of its own, and calls into it from any other loop.

The caller's loop is never blocked. A cancelled caller cancels the job and then waits for it to end on its own terms
(drain what was enqueued, finish a step that has begun to update), so that nothing goes on behind its back. Waits across loops
are not under the watchdog: what a job waits for on its own loop is (run_ahead.py), and it ends. Who opens and closes the loop
is lifetime.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from asynctile.errors import DeviceError
from asynctile.streams.event import resolve
from asynctile.threads import refusal, start

T = TypeVar("T")
#: Those of asyncio.to_thread on this loop.
THREADS = min(32, (os.cpu_count() or 1) + 4)
#: What to do with what a job made for a caller that is gone.
Undo = Callable[[T], Coroutine[Any, Any, None]]

CLOSED = "the engine is not open: use it inside 'async with Engine(...)'"
BROKEN_OFF = "the engine was closed while this ran on it: await what is under way before the end of 'async with Engine(...)'"


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """Start with `start()`, `await call(...)` from any loop, end with `end_jobs` on its own loop and then `close()`."""

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop) -> None:
        self.loop = make_loop()
        self._aside = ThreadPoolExecutor(THREADS, "asynctile-aside")
        self.loop.set_default_executor(self._aside)
        self.jobs: set[asyncio.Task[Any]] = set()
        #: on its loop: no job is taken any more
        self.is_ending = False
        #: nothing is posted behind the order to stop; reentrant, since the collector may close a caller's coroutine anywhere
        self._gate = threading.RLock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="asynctile-loop", daemon=True)

    def start(self) -> None:
        """With all the threads that jobs may want: none is asked for later. DeviceError if the system refuses one."""
        try:
            fill(self._aside)
            start(self._thread)
        except BaseException:
            self._aside.shutdown()
            self.loop.close()
            raise

    def post(self, callback: Callable[..., Any], *args: Any) -> bool:
        """Call `callback` on this loop soon, from any thread; False once it has stopped."""
        with self._gate:
            if not self._stopped:
                self.loop.call_soon_threadsafe(callback, *args)
            return not self._stopped

    def close(self) -> None:
        """Stop the loop and end the thread; blocks. Every job must have ended."""
        with self._gate:
            self._stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    async def end_jobs(self) -> None:
        """On this loop: take no job any more, cancel those that run and wait for them to end."""
        self.is_ending = True
        while self.jobs:
            for job in self.jobs:
                if not job.cancelling():
                    job.cancel()
            await asyncio.wait(self.jobs)

    def begin(self, job: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """On this loop: a task that `end_jobs` ends."""
        task = self.loop.create_task(job)
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)
        return task

    def is_here(self) -> bool:
        """Whether the caller runs on this loop."""
        return asyncio.get_running_loop() is self.loop

    async def call(self, job: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        """Run `job` as a task on this loop; its result or exception. Cancellation is passed on, once, and waited for.

        undo: called with what the job made if the caller is cancelled, or gone with its loop, before it gets it.
        DeviceError once the loop ends.
        """
        if self.is_here():
            return await job
        call = _Call(self, job, undo)
        cancelled = await call.ended()
        task = call.task
        if task is None:
            raise DeviceError(CLOSED)
        if not cancelled:
            if task.cancelled():
                raise DeviceError(BROKEN_OFF)
            return task.result()
        if not task.cancelled():
            task.result()  # an error while it wound down is not hidden by the cancellation
            if undo is not None:
                await self._undo(undo(task.result()))
        raise asyncio.CancelledError

    async def call_whole(self, job: Coroutine[Any, Any, None]) -> None:
        """Run `job`, which gives something back, to its end, whoever is cancelled; CancelledError afterwards."""
        if await (under_shield(job) if self.is_here() else self._whole(job)):
            raise asyncio.CancelledError

    async def _undo(self, job: Coroutine[Any, Any, None]) -> None:
        await self._whole(job)

    async def _whole(self, job: Coroutine[Any, Any, None]) -> bool:
        """To its end, whoever is cancelled or gone, and whether one was; nothing if the loop has ended, and all with it."""
        call = _Call(self, job, to_its_end=True)
        cancelled = await call.ended()
        if call.task is not None and not call.task.cancelled():
            call.task.result()
        return cancelled

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self._aside.shutdown()  # here: the loop's own way starts a thread for it
            asyncio.set_event_loop(None)
            self.loop.close()


class _Call(Generic[T]):
    """One job on the loop of `thread`, asked for from another loop, which may be closed before the job ends.

    to_its_end: the job goes on though the caller is cancelled or gone. task: None if the loop took no job any more.
    """

    def __init__(
        self, thread: LoopThread, job: Coroutine[Any, Any, T], undo: Undo[T] | None = None, *, to_its_end: bool = False
    ) -> None:
        self.task: asyncio.Task[T] | None = None
        self._thread = thread
        self._job = job
        self._undo = undo
        self._to_its_end = to_its_end
        self._here = asyncio.get_running_loop()
        #: what the caller awaits: a new one after a cancellation
        self._woken: asyncio.Future[None] = self._here.create_future()
        self._is_over = False
        self._is_forsaken = False

    async def ended(self) -> bool:
        """Begin the job and wait for its end, however often the caller is cancelled; whether it was."""
        if not self._thread.post(self._begin):
            self._job.close()
            return False
        cancelled = False
        while not self._is_over:
            try:
                await self._woken
            except asyncio.CancelledError:
                self._woken = self._here.create_future()
                if not cancelled:  # a second one must not disturb the job while it winds down
                    self._thread.post(self._cancel)
                cancelled = True
            except GeneratorExit:  # the caller's loop is closed, the caller is being thrown away
                self._thread.post(self._forsake)
                raise
        return cancelled

    def _begin(self) -> None:
        if self._thread.is_ending:
            self._job.close()
            self._tell()
            return
        self.task = self._thread.begin(self._job)
        self.task.add_done_callback(lambda _: self._tell())

    def _cancel(self) -> None:
        if self.task is not None and not self._to_its_end and not self.task.cancelling():
            self.task.cancel()

    def _forsake(self) -> None:
        """Nobody waits any more."""
        if self.task is not None and not self._is_forsaken:
            self._is_forsaken = True
            if self.task.done():
                self._clear_up()
            else:
                self._cancel()

    def _tell(self) -> None:
        if self._is_forsaken:
            return self._clear_up()
        try:
            self._here.call_soon_threadsafe(self._end)
        except RuntimeError:  # the caller's loop has been closed
            self._forsake()
        return None

    def _end(self) -> None:
        """On the caller's loop."""
        self._is_over = True
        resolve(self._woken)

    def _clear_up(self) -> None:
        """Nobody gets what the job made, or its error."""
        task = self.task
        if task is None or task.cancelled() or task.exception() is not None or self._undo is None:
            return
        self._thread.begin(self._undo(task.result()))


def fill(executor: ThreadPoolExecutor) -> None:
    """Start all THREADS of a new executor, which starts one when it is needed. DeviceError if the system refuses one."""
    together = threading.Barrier(THREADS)
    try:
        for begun in [executor.submit(together.wait) for _ in range(THREADS)]:
            begun.result()
    except (RuntimeError, MemoryError) as error:
        together.abort()
        raise refusal("asynctile-aside", error) from error


def may_wait(kind: type[BaseException] | None, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a block that began on `loop` and ends with an error of `kind` can await anything.

    Not one that is thrown away, maybe with its loop, by the collector in any thread. Its error is GeneratorExit, or whatever
    the caller's own blocks inside of it made of that: they cannot await either.
    """
    if kind is GeneratorExit or loop.is_closed():
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def under_shield(work: Awaitable[Any]) -> bool:
    """Await `work` to its end even if cancelled; True if a cancellation came meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except BaseException:
            break
    task.result()
    return cancelled
