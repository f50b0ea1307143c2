"""Streams on the host: worker threads that run work behind the loop that enqueues it.

A stream is a queue and one or more threads. A task names the events that it must wait for (asynctile/streams/event.py)
and becomes ready when all of them are done. Among ready tasks, the one enqueued first runs first, unless the enqueuer names
another order. So a ready task never waits behind one that is not ready.

Streams cannot deadlock: no thread blocks on an event, and an event exists before anything can wait for it.

A ready task whose gate is shut (gate.py) is kept back until `gates_changed` is called.

The way not taken: one thread per stream that runs strictly in order, with the stream chosen when work is issued, as on
a GPU. With two cores and guessed costs, each thread waited for the other for a quarter of the forward pass.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from asynctile.errors import DeviceError
from asynctile.streams.event import StreamEvent, StreamEvents, StreamTask
from asynctile.streams.gate import Gate
from asynctile.streams.recorder import Ran, Recorder
from asynctile.streams.stall import LEFT_BEHIND
from asynctile.streams.starving import Starving, ending, what_ended
from asynctile.threads import start

logger = logging.getLogger(__name__)


class Stream:
    """Threads that run tasks as they become ready. Streams whose tasks wait for one another share a lock.

    waiting_s: seconds, summed over the threads, in which the only work left waited for a copy.
    idle: number of threads that wait for work. enqueued: number of tasks that were ever enqueued.
    ready_at: time.perf_counter at which the task that a one-thread stream runs now could have begun.
    ending: while traced, the work whose event is being finished.
    The other attributes are those of TracedRunner.
    """

    def __init__(self, name: str, lock: threading.Lock, threads: int = 1) -> None:
        self.name = name
        self.waiting_s = 0.0
        self.ready_at = 0.0
        self.ending: Ran | None = None
        self._trace: Recorder | None = None
        self._starving: Starving | None = None
        self.finished = 0
        self.running: dict[str, tuple[StreamTask, float]] = {}
        self.waiting: set[StreamTask] = set()
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._ready: list[StreamTask] = []
        #: ready tasks that met a shut gate
        self._kept_back: list[StreamTask] = []
        self.idle = 0
        self.enqueued = 0
        self._unfinished = 0
        #: number of tasks that wait for a copy; time up to which waiting_s is counted
        self._starved = 0
        self._counted = 0.0
        self._closing = self._left = False
        names = [name] if threads == 1 else [f"{name}-{index}" for index in range(threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(name,), name=f"asynctile-{name}", daemon=True) for name in names
        ]

    @property
    def depth(self) -> tuple[int, int]:
        running = len(self.running)
        return max(self._unfinished - running, 0), running

    @property
    def trace(self) -> Recorder | None:
        return self._trace

    @trace.setter
    def trace(self, trace: Recorder | None) -> None:
        with self._lock:
            self._count_waiting()
            self._trace, self._starving = trace, None if trace is None else Starving(self.name, trace)

    def start(self) -> None:
        """Start the threads. DeviceError if the system refuses one; the threads before it then wait for `close`."""
        start(*self._threads)

    def enqueue(
        self,
        waits: StreamEvents,
        work: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        after: StreamEvents = (),
        is_copy: bool = False,
        what: object = None,
        order: int | None = None,
    ) -> StreamEvent:
        """Run work(*args) once all of `waits` have succeeded and all of `after` have ended; return the event of the work.

        order: among ready tasks, the one with the lowest runs first. None: the number of tasks enqueued so far.

        If one of `waits` fails, the work does not run, and its event gets the same error. DeviceError once the stream
        is closed.
        """
        event = StreamEvent(is_copy, what, self)
        task = StreamTask(self, event, work, args)
        with self._lock:
            if self._closing:
                raise DeviceError(f"stream {self.name} is closed: the engine was closed while it worked")
            self.enqueued += 1
            self._unfinished += 1
            task.order = self.enqueued if order is None else order
            task.hang_on(waits, after)
            if task.copies:
                self._count_waiting()
                self._starved += 1
                if self._starving is not None:
                    task.since = self._counted
                    self._starving.add(task)
            if task.waiting:
                task.waits, task.after = waits, after
                self.waiting.add(task)
            else:
                self._make_ready(task)
                if self.idle:
                    self._changed.notify()
        return event

    def promise(self, what: object) -> StreamEvent:
        """Return the event of a copy that somebody else carries out, until `keep`. DeviceError once the stream is closed."""
        with self._lock:
            if self._closing:
                raise DeviceError(f"stream {self.name} is closed: the engine was closed while it worked")
            self._unfinished += 1
        return StreamEvent(True, what, self)

    def keep(self, event: StreamEvent, error: BaseException | None) -> None:
        """Mark a promised copy as done, with its error. Any thread may call this."""
        with self._lock:
            self.finished += 1
            self._unfinished -= 1
            self.ending, event.error = None, error
            event.finish(self)
            self._changed.notify_all()
        event.wake()

    def close(self, patience_s: float | None = None) -> None:
        """Run everything that was enqueued, whatever the gates say, then end the threads.

        patience_s: seconds to wait in all, None for no limit. After that, work that still waits is given up, and a
            thread that hangs in its work is left behind (it is a daemon).
        """
        with self._lock:
            self._closing = True
            self._ready += self._kept_back
            heapify(self._ready)
            self.waiting.difference_update(self._kept_back)
            self._kept_back.clear()
            self._changed.notify_all()
        until = None if patience_s is None else time.monotonic() + patience_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if until is None else max(0.0, until - time.monotonic()))
                if thread.is_alive():
                    logger.warning(LEFT_BEHIND, thread.name)
                    with self._lock:
                        self._left = True
                        self._changed.notify_all()

    def gates_changed(self) -> None:
        """Let work that was kept back begin if its gate is open now."""
        with self._lock:  # even to look: a thread that saw a shut gate may be about to keep a task back
            if self._kept_back:
                self._count_waiting()
                if self._starving is not None:
                    self._starving.ends()
                kept, self._kept_back = self._kept_back, []
                self.waiting.difference_update(kept)
                for task in kept:
                    heappush(self._ready, task)
                self._changed.notify(len(kept))

    def has_work(self, gate: Gate, copies: bool) -> bool:
        """Return whether work of `gate` runs, is ready or is kept back. copies: count copies as well, not only operations."""
        with self._lock:
            there = [*self._ready, *self._kept_back, *[task for task, _ in list(self.running.values())]]
        return any(task.gate is gate and (copies or not task.event.is_copy) for task in there)

    def tick(self) -> None:
        """Count a piece as finished: a long piece of work calls this so that the watchdog sees it move."""
        with self._lock:
            self.finished += 1

    def _run(self, name: str) -> None:
        task: StreamTask | None = None
        while (task := self._next(task)) is not None:
            event = task.event
            if event.error is None:
                start = time.perf_counter()
                self.ready_at = task.ready_at
                self.running[name] = task, start
                try:
                    task.work(*task.args)
                except BaseException as error:  # the event carries it to everything that waits
                    event.error = error
                del self.running[name]
                if (trace := self._trace) is not None:
                    done = task.work.__name__, event.what, task.ready_at, start, time.perf_counter(), task.behind
                    task.ran = Ran(self.name, name, *done)
                    trace.put(task.ran)
            task.args = ()  # an idle thread must not hold the memory of an arena that was cut anew

    def _next(self, finished: StreamTask | None) -> StreamTask | None:
        """Finish the task that has run, and return a ready one, waiting if there is none; None when closed."""
        with self._lock:
            if finished is not None:
                self.finished += 1
                self._unfinished -= 1
                self.ending = finished.ran
                finished.event.finish(self)
            task = None
            while self._left or (task := self._take()) is None:
                if self._left or (self._closing and not self._unfinished):
                    self._changed.notify_all()
                    break
                if finished is not None:
                    # Wakers may call into an event loop: release the lock first.
                    self._lock.release()
                    finished.event.wake()
                    self._lock.acquire()
                    finished = None
                    continue
                self._rest()
        if finished is not None:
            finished.event.wake()
        return task

    def _take(self) -> StreamTask | None:
        """Return the first enqueued of the ready tasks that may begin, None if there is none. Call under the lock."""
        ready = self._ready
        while ready:
            task = heappop(ready)
            gate = task.gate
            if gate is None or not gate.level or gate.admits(task.event.is_copy) or self._closing:
                return task
            self._count_waiting()
            self._kept_back.append(task)
            self.waiting.add(task)
        return None

    def _rest(self) -> None:
        """Wait for something to be ready. Call under the lock."""
        self._count_waiting()
        self.idle += 1
        self._changed.wait()
        self._count_waiting()
        self.idle -= 1

    def _count_waiting(self) -> None:
        """Add the idle time since the last call to `waiting_s`, if any task waited for a copy.

        Call under the lock, before `idle`, `_starved` or `_kept_back` changes. While work is kept back for another
        turn, nothing is added: the threads then wait for the turn, not for a copy.
        """
        now = time.perf_counter()
        if self._starved and not self._kept_back:
            self.waiting_s += self.idle * (now - self._counted)
            if self._starving is not None and self.idle and not self._ready:
                self._starving.goes_on(self._counted, now, self.idle)
        self._counted = now

    def becomes_ready(self, task: StreamTask, by: object) -> None:
        self.waiting.discard(task)
        if self._starving is not None:
            task.behind = what_ended(by)
        task.waits = task.after = ()
        self._make_ready(task)
        if self.idle and (self is not by or len(self._ready) > 1):
            self._changed.notify()

    def _make_ready(self, task: StreamTask) -> None:
        """Queue a task that may begin. Call under the lock."""
        if self._starving is not None:
            self._count_waiting()
            self._starving.ends()
        task.ready_at = time.perf_counter()
        heappush(self._ready, task)

    def fed(self, task: StreamTask, by: object) -> None:
        self._count_waiting()
        self._starved -= 1
        if self._starving is not None:
            self._starving.fed(task, ending(by))
