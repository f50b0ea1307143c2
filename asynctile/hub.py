"""The readers of an engine's events, and how each part of the engine tells them.

Covers `Events`, which `engine.events()` returns, `Hub` and `Tell`; the events themselves are in events.py. Telling never waits
for a reader, and no event is built while there is no reader. Any thread tells, any event loop reads.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, ParamSpec, Self

from asynctile.events import Event
from asynctile.storage.input import shown
from asynctile.streams.event import resolve

P = ParamSpec("P")

#: The default limit of events that wait for a reader.
LIMIT = 1000
#: The name of the engine's own share.
ENGINE = "engine"


class Events:
    """A reader of events: an async iterator of `Event`, on any loop, for one task at a time.

    It yields every event from its making until the engine is closed, and then ends. At most `limit` events wait for it. When
    more come, the oldest are dropped, and the next event that is read says how many (`Event.dropped`). `aclose` ends it at
    once; a reader that nobody holds any more needs no closing. A wait for the next event may be cancelled: the reader goes on.
    """

    def __init__(self, hub: Hub, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit is {shown(limit)}: expected how many events may wait for their reader, at least 1")
        self._hub = hub
        self._ring: deque[Event] = deque()
        self._limit = limit
        self._dropped = 0
        self._is_over = False
        #: the future of the task that waits for the next event, and its loop
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        #: reentrant, since the garbage collector may close a coroutine that tells an event anywhere
        self._lock = threading.RLock()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event; RuntimeError if another task waits for it already."""
        while True:
            with self._lock:
                if self._ring:
                    dropped, self._dropped = self._dropped, 0
                    event = self._ring.popleft()
                    return replace(event, dropped=dropped) if dropped else event
                if self._is_over:
                    raise StopAsyncIteration
                if self._waiting is not None:
                    raise RuntimeError("these events are being awaited by another task: give each its own engine.events()")
                loop = asyncio.get_running_loop()
                waiting = self._waiting = loop, loop.create_future()
            try:
                await waiting[1]
            finally:
                with self._lock:
                    if self._waiting is waiting:
                        self._waiting = None

    async def aclose(self) -> None:
        """End the reader, from any loop; events that were not read are dropped. Calling it twice is fine."""
        self._hub.forget(self)
        with self._lock:
            self._ring.clear()
        self._end()

    def _push(self, event: Event) -> None:
        """Add an event, from any thread, without waiting."""
        with self._lock:
            if self._is_over:
                return
            if len(self._ring) == self._limit:
                self._ring.popleft()
                self._dropped += 1
            self._ring.append(event)
        self._wake()

    def _end(self) -> None:
        """Let the reader end once it has read the waiting events; from any thread."""
        with self._lock:
            self._is_over = True
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        loop, future = waiting
        try:
            loop.call_soon_threadsafe(resolve, future)
        except RuntimeError:  # the loop has been closed under its reader
            self._hub.forget(self)
            with self._lock:
                self._ring.clear()
                self._is_over = True


class Hub:
    """The readers of one engine, by weak references."""

    def __init__(self) -> None:
        self._readers: set[weakref.ref[Events]] = set()
        self._is_closed = False

    @property
    def is_heard(self) -> bool:
        """Whether there is a reader."""
        return bool(self._readers)

    def reader(self, limit: int = LIMIT) -> Events:
        """Return a new reader of the events from now on; one that has ended already once the hub is closed."""
        reader = Events(self, limit)
        self._readers.add(weakref.ref(reader, self._readers.discard))
        if self._is_closed:
            self._dismiss(reader)
        return reader

    def forget(self, reader: Events) -> None:
        """Send a reader no more events."""
        self._readers.discard(weakref.ref(reader))  # equal while both live

    def push(self, event: Event) -> None:
        """Send an event to every reader; from any thread."""
        for reader in self._alive():
            reader._push(event)

    def close(self) -> None:
        """Take no more events: every reader ends when it has read the waiting ones."""
        self._is_closed = True
        for reader in self._alive():
            self._dismiss(reader)

    def _dismiss(self, reader: Events) -> None:
        self.forget(reader)
        reader._end()

    def _alive(self) -> list[Events]:
        readers = [ref() for ref in self._readers.copy()]  # tuple() would let the garbage collector drop readers in between
        return [reader for reader in readers if reader is not None]


class Tell:
    """Sends the events of one share: `tell(StepDone, model=..., step=...)`, from any thread, without waiting.

    share: the name of the share.
    """

    __slots__ = ("share", "_hub")

    def __init__(self, hub: Hub, share: str) -> None:
        self.share = share
        self._hub = hub

    @property
    def is_heard(self) -> bool:
        """Whether there is a reader, for events whose fields cost something to find out."""
        return self._hub.is_heard

    def __call__(self, kind: Callable[Concatenate[str, P], Event], /, *args: P.args, **fields: P.kwargs) -> None:
        """Build the event and send it to every reader; does nothing while there is none."""
        if self._hub.is_heard:
            self._hub.push(kind(self.share, *args, **fields))


#: For work without an engine, such as a plan.
UNHEARD = Tell(Hub(), ENGINE)
