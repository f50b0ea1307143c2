"""The gate of a share: whether its work may begin now, or must wait for its turn.

Whoever enqueues work within a job of a share does so in a context that has its gate, so that streams know whose a piece is
without being told by everybody on the way (stream.py). Outside of jobs there is none, and nothing is held back. Who sets
levels is asynctile/loop/turns.py; compiled workers are told by it (asynctile/play/player.py).
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

#: What may begin: everything, copies alone, nothing. What runs is never broken off.
OPEN, COPIES, CLOSED = range(3)


class Gate:
    """level: OPEN, COPIES or CLOSED; set on the device's loop, read by any thread."""

    __slots__ = ("level", "_waiting")

    def __init__(self) -> None:
        self.level = OPEN
        self._waiting: set[asyncio.Future[None]] = set()

    def admits(self, is_copy: bool) -> bool:
        """Whether a piece of work may begin."""
        return self.level == OPEN or (is_copy and self.level == COPIES)

    def set(self, level: int) -> None:
        """On the device's loop. Whoever waits for it to be open goes on."""
        self.level = level
        if level == OPEN:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Whether a job would issue work if it were open."""
        return bool(self._waiting)

    async def opened(self) -> None:
        """On the device's loop: wait until it is open. Under no watchdog: turns go round by a clock, so this ends."""
        while self.level != OPEN:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)


#: That of the share whose job this is.
GATE: ContextVar[Gate | None] = ContextVar("asynctile_gate", default=None)
