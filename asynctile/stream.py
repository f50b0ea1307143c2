"""Streams and events on the host: worker threads that run work in order, behind the loop that enqueues it.

A stream is one thread and a queue. An event is recorded when work is enqueued and is done when it has run; other
streams wait for it without the event loop. An event carries the error of its work, and work that waits for a failed
event fails with the same error instead of running: one bad kernel fails everything downstream and nothing else.

One thread a stream, chosen when the work is issued, and an event exists before anyone may wait for it: so a wait
always points backwards in program order and streams cannot deadlock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

#: One piece of work in a trace: stream, work, start and end in seconds.
Span = tuple[str, str, float, float]


class Event:
    """Done when its work has run. Created by `Stream.enqueue`.

    error: what the work raised, or inherited; None if it went well. is_copy: moved bytes over the link.
    """

    __slots__ = ("done", "error", "is_copy", "_waiters")

    def __init__(self, is_copy: bool = False) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.is_copy = is_copy
        self._waiters: list[Callable[[], Any]] = []

    def finish(self) -> None:
        """Called by the stream. The order (flag first, then the waiters) is what `wait` relies on."""
        self.done = True
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def wait(self) -> None:
        """Block the calling worker thread until done."""
        lock = threading.Lock()
        lock.acquire()
        self._waiters.append(lock.release)
        if self.done:
            return  # finished in between; an unheard release of our own lock harms nobody
        lock.acquire()

    async def settled(self) -> None:
        """Wait on the event loop until done, well or not."""
        if not self.done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append(lambda: loop.call_soon_threadsafe(resolve, future))
            if not self.done:
                await future

    async def landed(self) -> None:
        """Wait on the event loop until done; raises the error of the work."""
        await self.settled()
        if self.error is not None:
            raise self.error


class Stream:
    """A thread that runs work in the order of `enqueue`.

    waiting_s: seconds for which its head waited for a copy (the pipeline was late); counted in the thread.
    trace: None, or a list that gets (stream, work, start, end) in seconds of time.perf_counter.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting_s = 0.0
        self.last: Event | None = None
        self.trace: list[Span] | None = None
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"asynctile-{name}", daemon=True)
        self._thread.start()

    def enqueue(
        self, waits: Iterable[Event], work: Callable[..., Any], args: tuple[Any, ...], is_copy: bool = False
    ) -> Event:
        """Run work(*args) after everything enqueued here before and after `waits`."""
        event = Event(is_copy)
        self.last = event
        self._queue.put((event, waits, work, args))
        return event

    def close(self) -> None:
        """Run what is enqueued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        take = self._queue.get
        while (item := take()) is not None:
            event, waits, work, args = item
            try:
                for before in waits:
                    if not before.done:
                        self._await(before)
                    if before.error is not None:
                        raise before.error
                if self.trace is None:
                    work(*args)
                else:
                    start = time.perf_counter()
                    work(*args)
                    self.trace.append((self.name, work.__name__, start, time.perf_counter()))
            except BaseException as error:  # the event carries it to whoever waits
                event.error = error
            event.finish()
            item = event = waits = work = args = None  # keep nothing alive while idle

    def _await(self, event: Event) -> None:
        if not event.is_copy:
            event.wait()
            return
        start = time.perf_counter()
        event.wait()
        self.waiting_s += time.perf_counter() - start


def resolve(future: asyncio.Future[None]) -> None:
    """Set a future from another thread, by call_soon_threadsafe; nothing if it was cancelled meanwhile."""
    if not future.done():
        future.set_result(None)
