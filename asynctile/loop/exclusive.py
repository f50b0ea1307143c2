"""A lock on the device's loop, granted in the order of asking. Its holder has a name, and the watchdog covers waits for it.

asyncio.Lock would not do: it cannot say who holds it, and that is what a service wants to read when something hangs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from asynctile.streams.run_ahead import RunAhead
from asynctile.streams.stall import who


class Exclusive:
    """A lock on the thing that `what` names in messages.

    holder: name of the coroutine that holds it; None if it is free.
    over: called whenever a holder lets go.
    """

    def __init__(self, what: str, run_ahead: RunAhead, over: Callable[[], object] = bool) -> None:
        self.what = what
        self.holder: str | None = None
        self._over = over
        self._run_ahead = run_ahead
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Number of callers that wait for the lock. Any thread may ask."""
        return len(self._waiting)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock. StalledError, with nothing held, if nothing at all moves while somebody else holds it."""
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
            if granted.done():  # granted in the same turn of the loop, but this caller is leaving: pass it on
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
