"""Events, and the work that waits for them: what orders streams, of whatever kind of runner.

An event carries the error of its work, and work that waits for a failed event fails with the same error instead of
running: one bad kernel fails everything downstream. Work that only comes after another, because it takes over the slot, does
not care how that went: nothing else fails. Who runs the work is asynctile/streams/stream.py, or a GPU's stream.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from asynctile.streams.gate import GATE
from asynctile.streams.recorder import Ran, Recorder


class StreamEvent:
    """Done when its work has run. Created by `Stream.enqueue`.

    error: what the work raised, or inherited; None if it went well. is_copy: moved bytes between tiers. what: the
    operation or the tile that it is about, for messages. stream: that runs it, None where nobody asks.
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
        """Block the calling thread until done."""
        lock = threading.Lock()
        lock.acquire()
        self._wakers.append(lock.release)
        if not self.done:
            lock.acquire()

    async def settled(self) -> None:
        """Wait on the event loop until done, well or not."""
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.resolves(future)
            await future

    def resolves(self, future: asyncio.Future[None]) -> None:
        """On the loop of `future`: resolve it once done, well or not."""
        loop = future.get_loop()
        self._wakers.append(lambda: loop.call_soon_threadsafe(resolve, future))
        if self.done:
            resolve(future)

    async def landed(self) -> None:
        """Wait on the event loop until done; raises the error of the work."""
        await self.settled()
        if self.error is not None:
            raise self.error

    @property
    def is_awaited(self) -> bool:
        """Whether somebody on the host waits for it now."""
        return bool(self._wakers or self.dependents or self.followers)

    def finish(self, by: object = None) -> None:
        """Under the lock of its streams: it is done; what waited for nothing else becomes ready. by: the stream that ran it."""
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
        """After `done` is set. Whoever adds a waker looks at `done` afterwards, so none is missed."""
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            try:
                wake()
            except RuntimeError:
                pass  # the loop that waited has been closed meanwhile; nobody is there to be told


#: What work waits for, in no order.
StreamEvents = Sequence[StreamEvent]


class Runner(Protocol):
    """What runs work: worker threads here, a device's own queue (device/cuda_stream.py), compiled workers (play/player.py).

    finished: pieces of work that have run. running: by thread, what runs now and since when. waiting: what waits for other
    pieces, and, waiting for none, what is held back until its share has its turn.
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
        """How many pieces wait, and how many run: a look from any thread, without a lock, that may be off by what moves."""

    def start(self) -> None: ...

    def close(self, patience_s: float | None = None) -> None: ...


class TracedRunner(Runner, Protocol):
    """A runner that tells what it does. trace: whom it tells, None while nobody wants to know."""

    trace: Recorder | None


class TaskRunner(TracedRunner, Protocol):
    """A runner of tasks, which events make ready. ending: while it finishes an event and is traced, the work of that."""

    ending: Ran | None

    def becomes_ready(self, task: StreamTask, by: object) -> None:
        """Under the lock: what `task` waited for is done."""

    def fed(self, task: StreamTask, by: object) -> None:
        """Under the lock: the last copy that `task` waited for is done. by: who moved it."""


class PendingWork:
    """A piece of work as a runner shows it: what it is, by its event; what it waits for, while it does; its order."""

    __slots__ = ("order", "event", "waits", "after")

    def __init__(self, event: StreamEvent) -> None:
        self.event = event
        self.waits: StreamEvents = ()
        self.after: StreamEvents = ()
        self.order = 0


class StreamTask(PendingWork):
    """Work that waits: for `waiting` events, `copies` of them copies. gate: of the share that it was enqueued for, or None.

    since, behind, ran: while it is traced, when it was enqueued, what it waited for last, and how it ran.
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
        """Under the lock: count the events that are not done yet, and be told of them; take over the error of one that is."""
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
    """What must be over before a place is used again; how it went does not matter."""
    if not events:
        return ()
    return tuple([event for event in events if event is not None and not event.done])


def failed_or_unfinished(*events: Any) -> tuple[StreamEvent, ...]:
    """What wrote the bytes about to be read: an error must travel on."""
    return tuple([event for event in events if event is not None and (not event.done or event.error is not None)])


def resolve(future: asyncio.Future[None]) -> None:
    """Set a future, from another thread by call_soon_threadsafe; nothing if it was set or cancelled meanwhile."""
    if not future.done():
        future.set_result(None)
