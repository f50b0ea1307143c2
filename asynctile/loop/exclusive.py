"""A lock on the device's loop, given in order of asking, whose holder has a name. Waiting for it is under the watchdog.

Not asyncio.Lock: who waits for one cannot say for whom, and in whose hands it is when something hangs is what a service wants
to read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asynctile.streams.run_ahead import RunAhead
from asynctile.streams.stall import who


class Exclusive:
    """what: is held, for messages. holder: who holds it, None if nobody does. over: called when a holder lets go."""

    def __init__(self, what: str, run_ahead: RunAhead, over: Callable[[], object] = bool) -> None:
        self.what = what
        self.holder: str | None = None
        self._over = over
        self._run_ahead = run_ahead
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for it; from any thread."""
        return len(self._waiting)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold it. StalledError, with nothing held, if nothing at all moves while somebody else does."""
        await self._acquire(who())
        try:
            yield
        finally:
            self._hand_on()

    async def _acquire(self, name: str) -> None:
        if self.holder is None:
            self.holder = name
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, granted))
        try:
            await self._run_ahead.told(granted, lambda: f"{name} waits for {self.what}, which is held by {self.holder}")
        except BaseException:
            if granted.done():  # in the same turn: it is ours, and we are gone
                self._hand_on()
            else:
                self._waiting.remove((name, granted))
            raise

    def _hand_on(self) -> None:
        self.holder = None
        self._over()
        if self._waiting:
            self.holder, granted = self._waiting.popleft()
            granted.set_result(None)
