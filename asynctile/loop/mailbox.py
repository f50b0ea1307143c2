"""Handover from the engine's loop to one reader on any other loop: `Mailbox`. The writer never waits and needs no reader.

In the other direction, readers write to the engine's loop by calls (asynctile/loop/thread.py).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

from asynctile.streams.event import resolve

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue with one reader: `put` and finally `close` from any thread, `await take()` from one task at a time.

    A cancelled `take` loses no item.
    """

    def __init__(self) -> None:
        #: reentrant, since the garbage collector may end a reader anywhere
        self._lock = threading.RLock()
        self._items: deque[T] = deque()
        self._end: BaseException | None = None
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, item: T) -> None:
        with self._lock:
            self._items.append(item)
            self._wake()

    def close(self, error: BaseException) -> None:
        """Add no more items: once all are taken, `take` raises `error`. Closing again changes nothing."""
        with self._lock:
            if self._end is None:
                self._end = error
                self._wake()

    async def take(self) -> T:
        """Return the next item, waiting for it. Once all items of a closed mailbox are taken, raise its error."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                if self._end is not None:
                    raise self._end
                loop = asyncio.get_running_loop()
                ready = loop.create_future()
                self._waiting = loop, ready
            await ready

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        loop, ready = waiting
        try:
            loop.call_soon_threadsafe(resolve, ready)
        except RuntimeError:  # the reader's loop has been closed
            pass
