"""What is handed from the engine's loop to one reader on any other: `Mailbox`. The writer never waits, and needs no reader.

What a reader is to write to the engine's loop goes by calls (thread.py).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

from asynctile.streams.event import resolve

T = TypeVar("T")


class Mailbox(Generic[T]):
    """`put` and then `close`, from any thread; `await take()` from one task at a time: cancelled, it loses nothing."""

    def __init__(self) -> None:
        #: the collector may end a reader anywhere
        self._lock = threading.RLock()
        self._items: deque[T] = deque()
        self._end: BaseException | None = None
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, item: T) -> None:
        with self._lock:
            self._items.append(item)
            self._wake()

    def close(self, error: BaseException) -> None:
        """There is no more: whoever takes what is not there gets `error`. Once closed it stays so."""
        with self._lock:
            if self._end is None:
                self._end = error
                self._wake()

    async def take(self) -> T:
        """The next item; raises what it was closed with when there are no more."""
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
