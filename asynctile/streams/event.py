"""Stream events, and the tasks that wait for them: how work on different streams is ordered.

An event carries the error of its work. Work can wait for an event in two ways:

- `waits`: the work needs the bytes. If such an event failed, the work does not run, and its own event fails with the
  same error. So one bad kernel fails everything downstream.
- `after`: the work only takes over the slot. It runs however the earlier work ended, so errors do not spread this way.

Worker threads run tasks in asynctile/streams/stream.py; a GPU's stream is asynctile/device/cuda_stream.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from asynctile.streams.gate import GATE
from asynctile.streams.recorder import Ran, Recorder


class StreamEvent:
    """Completion of one piece of work: done once the work has run. `Stream.enqueue` creates it.

    error: exception that the work raised or inherited; None if it succeeded.
    is_copy: whether the work moves bytes between tiers.
    what: operation or tile that the work is about, for messages.
    stream: runner of the work; None where nobody asks.
    """

    __slots__ = ("done", "error", "is_copy", "what", "stream", "dependents", "followers", "_wakers")

    def __init__(self, is_copy: bool = False, what: object = None, stream: TaskRunner | None = None) -> None:
        self.done = False
        self.stream = stream
        self.error: BaseException | None = None
        self.is_copy = is_copy
        self.what = what
        self.dependents: list[StreamTask] = []
        self.followers: list[StreamTask] = []
        self._wakers: list[Callable[[], Any]] = []

    def wait(self) -> None:
        """Block the calling thread until the work is done."""
        lock = threading.Lock()
        lock.acquire()
        self._wakers.append(lock.release)
        if not self.done:
            lock.acquire()

    async def settled(self) -> None:
        """Wait on the event loop until the work is done, whether it failed or not."""
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.resolves(future)
            await future

    def resolves(self, future: asyncio.Future[None]) -> None:
        """Resolve `future` once the work is done, whether it failed or not. Call on the loop of `future`."""
        loop = future.get_loop()
        self._wakers.append(lambda: loop.call_soon_threadsafe(resolve, future))
        if self.done:
            resolve(future)

    async def landed(self) -> None:
        """Wait on the event loop until the work is done; raise its error."""
        await self.settled()
        if self.error is not None:
            raise self.error

    @property
    def is_awaited(self) -> bool:
        """Whether anything on the host waits for this event now."""
        return bool(self._wakers or self.dependents or self.followers)

    def finish(self, by: object = None) -> None:
        """Mark the work as done, and make every task ready that waited for nothing else. Call under the lock of the streams.

        Tasks that needed the bytes take over the error; tasks that only come after do not. Call `wake` later, without
        the lock.
        by: the runner of the work.
        """
        self.done = True
        dependents, followers = self.dependents, self.followers
        if not dependents and not followers:
            return
        self.dependents, self.followers = [], []
        for task in dependents:
            task.event.error = task.event.error or self.error
        for task in (*dependents, *followers):
            task.waiting -= 1
            if self.is_copy:
                task.copies -= 1
                if not task.copies:
                    task.stream.fed(task, by)
            if not task.waiting:
                task.stream.becomes_ready(task, by)

    def wake(self) -> None:
        """Wake the threads and loops that wait. Call after `done` is set.

        A waiter registers first and then checks `done`, so none is missed.
        """
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            try:
                wake()
            except RuntimeError:
                pass  # the loop that waited has been closed: nobody is left to tell


def failed(error: BaseException, what: object = None) -> StreamEvent:
    """Return a failed event, for work that never began or whose event is gone."""
    event = StreamEvent(what=what)
    event.done, event.error = True, error
    return event


#: Events that work waits for, in no particular order.
StreamEvents = Sequence[StreamEvent]


class Runner(Protocol):
    """Something that runs work.

    That is: worker threads (stream.py), a queue of a GPU (device/cuda_stream.py) or compiled workers (workers/player.py).

    finished: number of pieces of work that have run.
    running: by thread, the piece that runs now, and the time.perf_counter at which it began.
    waiting: pieces that wait for other pieces, and ready pieces that are held back until their share has its turn.
    """

    name: str

    @property
    def waiting(self) -> Collection[PendingWork]: ...

    @property
    def finished(self) -> int: ...

    @property
    def running(self) -> Mapping[str, tuple[PendingWork, float]]: ...

    @property
    def depth(self) -> tuple[int, int]:
        """Number of pieces that wait, and number of pieces that run.

        Any thread may look, without a lock; a piece that is just moving may be miscounted.
        """

    def start(self) -> None: ...

    def close(self, patience_s: float | None = None) -> None: ...


class TracedRunner(Runner, Protocol):
    """A runner that reports its work to a trace. trace: the recorder, None while nothing is traced."""

    trace: Recorder | None


class TaskRunner(TracedRunner, Protocol):
    """A runner of tasks, which events make ready.

    ending: while traced, the work whose event is being finished now; None otherwise.
    """

    ending: Ran | None

    def becomes_ready(self, task: StreamTask, by: object) -> None:
        """Queue or start `task`, because the last event that it waited for is done. Called under the lock.

        by: the runner whose work completed that event.
        """

    def fed(self, task: StreamTask, by: object) -> None:
        """Note that the last copy that `task` waited for is done. Called under the lock. by: the runner of the copy."""


class PendingWork:
    """A piece of work as a runner shows it: its event, the events that it still waits for, and its place in the order."""

    __slots__ = ("order", "event", "waits", "after")

    def __init__(self, event: StreamEvent) -> None:
        self.event = event
        self.waits: StreamEvents = ()
        self.after: StreamEvents = ()
        self.order = 0


class StreamTask(PendingWork):
    """A function call that waits on a stream: it waits for `waiting` more events, and `copies` of these are copies.

    gate: gate of the share that enqueued the task; None outside jobs.
    since, behind, ran: kept only while traced: when the task was enqueued, what it waited for last, and how it ran.
    """

    __slots__ = ("stream", "work", "args", "waiting", "copies", "ready_at", "gate", "since", "behind", "ran")

    def __init__(self, stream: TaskRunner, event: StreamEvent, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(event)
        self.stream = stream
        self.work = work
        self.args = args
        self.waiting = self.copies = 0
        self.ready_at = self.since = 0.0
        self.gate = GATE.get()
        self.behind: tuple[str, object] | None = None
        self.ran: Ran | None = None

    def __lt__(self, other: StreamTask) -> bool:
        return self.order < other.order

    def hang_on(self, waits: StreamEvents, after: StreamEvents) -> None:
        """Register with each event that is not done, and take over the error of a done one. Call under the lock.

        Only `waits` pass on errors.
        """
        event = self.event
        for before in waits:
            if before.done:
                event.error = event.error or before.error
            else:
                before.dependents.append(self)
                self.waiting += 1
                self.copies += before.is_copy
        for before in after:
            if not before.done:
                before.followers.append(self)
                self.waiting += 1
                self.copies += before.is_copy


def unfinished(*events: Any) -> tuple[StreamEvent, ...]:
    """Return the events that are not done. They must end, successfully or not, before a place is used again."""
    if not events:
        return ()
    return tuple([event for event in events if event is not None and not event.done])


def failed_or_unfinished(*events: Any) -> tuple[StreamEvent, ...]:
    """Return the events that are not done or have failed.

    For events that wrote the bytes about to be read: their error must travel on.
    """
    return tuple([event for event in events if event is not None and (not event.done or event.error is not None)])


def resolve(future: asyncio.Future[None]) -> None:
    """Set a future on its own loop, unless it is set or cancelled already. Other threads use call_soon_threadsafe."""
    if not future.done():
        future.set_result(None)
