"""An event loop in a thread of its own, and calls into it from any other loop.

The caller's loop is never blocked. A cancelled caller cancels the job and then waits for it to end on its own terms
(drain what was enqueued, finish a step that has begun to update), so that nothing goes on behind its back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from asynctile.stream import resolve

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """Start with `start()`, `await call(...)` from any loop, end with `close()`."""

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop) -> None:
        self.loop = make_loop()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="asynctile-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the loop and end the thread. Every job must have ended."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def end_jobs(self) -> None:
        """Cancel what still runs here and wait for it to end. Called from another loop, before `close`."""

        async def cancel_all() -> None:
            others = [task for task in self._jobs if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        await self.call(cancel_all())

    async def call(self, job: Coroutine[Any, Any, T]) -> T:
        """Run `job` as a task on this loop; its result or exception. Cancellation is passed on and waited for."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[None] = here.create_future()
        task: asyncio.Task[T] | None = None
        cancelled = False

        def begin() -> None:
            nonlocal task
            task = self.loop.create_task(job)
            self._jobs.add(task)
            task.add_done_callback(self._jobs.discard)
            task.add_done_callback(lambda _: here.call_soon_threadsafe(resolve, done))

        def cancel() -> None:
            if task is not None:
                task.cancel()

        self.loop.call_soon_threadsafe(begin)
        while not done.done():
            try:
                await asyncio.shield(done)
            except asyncio.CancelledError:
                cancelled = True
                self.loop.call_soon_threadsafe(cancel)
        assert task is not None
        if cancelled and (task.cancelled() or task.exception() is None):
            raise asyncio.CancelledError
        return task.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


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
