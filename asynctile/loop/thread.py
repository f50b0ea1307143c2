"""An event loop in a thread of its own, and calls into it from any other loop.

The caller's loop is never blocked. A cancelled caller cancels its job and then waits for the job to end in its own way:
to drain the work that it enqueued, or to finish a step that has begun to update. So no job goes on behind its caller's
back.

Waits across loops need no watchdog: everything that a job waits for on its own loop is watched (streams/run_ahead.py),
so the job ends. asynctile/lifetime.py opens and closes the loop.
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
#: Threads for asyncio.to_thread on this loop.
THREADS = min(32, (os.cpu_count() or 1) + 4)
#: Gives back the result of a job whose caller is gone.
Undo = Callable[[T], Coroutine[Any, Any, None]]

NOT_OPENED = "the engine is not open: use it inside 'async with Engine(...)'"
CLOSED = "the engine is not open, because it was closed: make a new Engine to go on"
BROKEN_OFF = "the engine was closed while this ran; await all work before the end of 'async with Engine(...)'"


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop in its own thread: `start()` it, then `await call(...)` from any loop.

    To end it, run `end_jobs` on its own loop, then call `close()`.
    """

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop) -> None:
        self.loop = make_loop()
        self._aside = ThreadPoolExecutor(THREADS, "asynctile-aside")
        self.loop.set_default_executor(self._aside)
        self.jobs: set[asyncio.Task[Any]] = set()
        #: whether new jobs are refused; set on its loop
        self.is_ending = False
        #: so that nothing is posted after the order to stop; reentrant: the collector may close a caller's coroutine anywhere
        self._gate = threading.RLock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="asynctile-loop", daemon=True)

    def start(self) -> None:
        """Start the loop and all threads that jobs may want, so that none is asked for later.

        DeviceError if the system refuses a thread.
        """
        try:
            fill(self._aside)
            start(self._thread)
        except BaseException:
            self._aside.shutdown()
            self.loop.close()
            raise

    def post(self, callback: Callable[..., Any], *args: Any) -> bool:
        """Call `callback` on this loop soon, from any thread; return False if the loop has stopped."""
        with self._gate:
            if not self._stopped:
                self.loop.call_soon_threadsafe(callback, *args)
            return not self._stopped

    def close(self) -> None:
        """Stop the loop and wait for its thread to end; blocks. Every job must have ended before, which is not checked."""
        with self._gate:
            self._stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    async def end_jobs(self) -> None:
        """Refuse new jobs, cancel the running ones and wait for them to end. Runs on this loop."""
        self.is_ending = True
        while self.jobs:
            for job in self.jobs:
                if not job.cancelling():
                    job.cancel()
            await asyncio.wait(self.jobs)

    def begin(self, job: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start `job` as a task that `end_jobs` ends. Call on this loop."""
        task = self.loop.create_task(job)
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)
        return task

    def is_here(self) -> bool:
        """Return whether the caller runs on this loop."""
        return asyncio.get_running_loop() is self.loop

    async def call(self, job: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        """Run `job` as a task on this loop; return its result or raise its error. DeviceError once the loop ends.

        A cancellation of the caller is passed on to the job, once, and the caller waits until the job has ended.
        undo: called with the job's result if the caller is cancelled, or gone with its loop, before it gets the result.
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
            task.result()  # the cancellation must not hide an error of winding down
            if undo is not None:
                await self._undo(undo(task.result()))
        raise asyncio.CancelledError

    async def call_whole(self, job: Coroutine[Any, Any, None]) -> None:
        """Run `job`, which gives something back, to its end even if the caller is cancelled; then raise CancelledError."""
        if await (under_shield(job) if self.is_here() else self._whole(job)):
            raise asyncio.CancelledError

    async def _undo(self, job: Coroutine[Any, Any, None]) -> None:
        await self._whole(job)

    async def _whole(self, job: Coroutine[Any, Any, None]) -> bool:
        """Run `job` to its end even if the caller is cancelled or gone; return whether it was cancelled.

        Do nothing if the loop has ended, since everything on it has ended too.
        """
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
            self._aside.shutdown()  # here, since the loop's own shutdown would start a thread for it
            asyncio.set_event_loop(None)
            self.loop.close()


class _Call(Generic[T]):
    """One job on the loop of `thread`, called from another loop, which may be closed before the job ends.

    to_its_end: whether the job goes on when its caller is cancelled or gone.
    task: the job's task; None before it begins, and if the loop refused it.
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
        #: future that the caller awaits; replaced after a cancellation
        self._woken: asyncio.Future[None] = self._here.create_future()
        self._is_over = False
        self._is_forsaken = False

    async def ended(self) -> bool:
        """Begin the job and wait for its end, however often the caller is cancelled; return whether it was."""
        if not self._thread.post(self._begin):
            self._job.close()
            return False
        cancelled = False
        while not self._is_over:
            try:
                await self._woken
            except asyncio.CancelledError:
                self._woken = self._here.create_future()
                if not cancelled:  # a second cancellation must not disturb the job while it winds down
                    self._thread.post(self._cancel)
                cancelled = True
            except GeneratorExit:  # the caller's loop is closed, and the caller is being thrown away
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
        """End the job without its caller: cancel it, or clean up if it has ended."""
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
        """Wake the caller. Runs on the caller's loop."""
        self._is_over = True
        resolve(self._woken)

    def _clear_up(self) -> None:
        """Undo the result of the job, which has no receiver. A job that failed or was cancelled has no result."""
        task = self.task
        if task is None or task.cancelled() or task.exception() is not None or self._undo is None:
            return
        self._thread.begin(self._undo(task.result()))


def fill(executor: ThreadPoolExecutor) -> None:
    """Start all THREADS threads of a new executor, which would else start each when it is needed.

    DeviceError if the system refuses one.
    """
    together = threading.Barrier(THREADS)
    try:
        for begun in [executor.submit(together.wait) for _ in range(THREADS)]:
            begun.result()
    except (RuntimeError, MemoryError) as error:
        together.abort()
        raise refusal("asynctile-aside", error) from error


def may_wait(kind: type[BaseException] | None, loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a block that began on `loop` and ends with an error of `kind` may await anything.

    A block that the garbage collector throws away may not, in any thread, with or without its loop. Its error is
    GeneratorExit, or an error that the caller's own inner blocks made of that; such a block has no running loop, or a
    closed one.
    """
    if kind is GeneratorExit or loop.is_closed():
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def under_shield(work: Awaitable[Any]) -> bool:
    """Await `work` to its end even if cancelled; return whether a cancellation came meanwhile."""
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
