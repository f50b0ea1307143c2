"""From where events happen to whoever reads them: the readers of an engine, and how each of its parts tells.

Covers `Hub`, `Tell` and `Events`, what `engine.events()` returns; what is told is events.py. Nothing here waits for a reader,
and nothing is built while there is none. Any thread tells, any event loop reads.
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

#: Events that a reader may be behind, unless it says otherwise.
LIMIT = 1000
#: The share of the engine itself.
ENGINE = "engine"


class Events:
    """One reader: an async iterator of `Event`, from any loop, for one task at a time. `limit`: how many wait for it at most.

    Where more come, the oldest go, and the next that is read says how many (Event.dropped). It gets what is told from when it
    was made until the engine is closed, and ends there once all of it is read. A reader that nobody has any more gets nothing,
    and needs no closing; `aclose` ends it at once. A wait for the next may be cancelled: the reader goes on.
    """

    def __init__(self, hub: Hub, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit is {shown(limit)}: expected how many events may wait for their reader, at least 1")
        self._hub = hub
        self._ring: deque[Event] = deque()
        self._limit = limit
        self._dropped = 0
        self._is_over = False
        #: who waits for the next event, on which loop
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        #: reentrant, since the collector may close a coroutine that tells something, anywhere
        self._lock = threading.RLock()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """RuntimeError if another task waits for the next one already."""
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
        """End it, from any loop: what was not read is gone. Twice is fine."""
        self._hub.forget(self)
        with self._lock:
            self._ring.clear()
        self.end()

    def push(self, event: Event) -> None:
        """From any thread: one more; never waits."""
        with self._lock:
            if self._is_over:
                return
            if len(self._ring) == self._limit:
                self._ring.popleft()
                self._dropped += 1
            self._ring.append(event)
        self._wake()

    def end(self) -> None:
        """From any thread: nothing more comes."""
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
    """All readers of one engine. It holds none of them: who reads does."""

    def __init__(self) -> None:
        self._readers: set[weakref.ref[Events]] = set()
        self._is_closed = False

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._readers)

    def reader(self, limit: int = LIMIT) -> Events:
        """A new one, which gets what is told from now on; over already once the hub is closed."""
        reader = Events(self, limit)
        self._readers.add(weakref.ref(reader, self._readers.discard))
        if self._is_closed:
            self._end(reader)
        return reader

    def forget(self, reader: Events) -> None:
        """It gets nothing any more."""
        self._readers.discard(weakref.ref(reader))  # equal while both live

    def push(self, event: Event) -> None:
        """From any thread: to every reader."""
        for reader in self._alive():
            reader.push(event)

    def close(self) -> None:
        """Nothing more is told: every reader ends when it has read what waits for it."""
        self._is_closed = True
        for reader in self._alive():
            self._end(reader)

    def _end(self, reader: Events) -> None:
        self.forget(reader)
        reader.end()

    def _alive(self) -> list[Events]:
        readers = [ref() for ref in self._readers.copy()]  # in one go, where a tuple lets the collector in, and readers out
        return [reader for reader in readers if reader is not None]


class Tell:
    """How what belongs to one share tells something: `tell(StepDone, model=..., step=...)`, from any thread, without waiting.

    share: its name. is_heard: whether anybody listens, for what costs something to find out.
    """

    __slots__ = ("share", "_hub")

    def __init__(self, hub: Hub, share: str) -> None:
        self.share = share
        self._hub = hub

    @property
    def is_heard(self) -> bool:
        return self._hub.is_heard

    def __call__(self, kind: Callable[Concatenate[str, P], Event], /, *args: P.args, **fields: P.kwargs) -> None:
        """Build the event and hand it to every reader; nothing while there is none."""
        if self._hub.is_heard:
            self._hub.push(kind(self.share, *args, **fields))


#: For what runs without an engine, such as a plan.
UNHEARD = Tell(Hub(), ENGINE)
