"""The gate of a share: whether the share's work may begin now or must wait for its turn.

A job of a share enqueues its work in a context that holds the share's gate (`GATE`). So a stream knows whose work it
gets, and no caller in between has to pass the gate along (stream.py). Outside jobs there is no gate, and nothing is
held back.

asynctile/loop/turns.py sets the levels, and tells compiled workers as well (asynctile/execute/workers/player.py).
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

#: What may begin: everything, only copies, nothing. Running work is never interrupted.
OPEN, COPIES, CLOSED = range(3)


class Gate:
    """A gate with a level: OPEN, COPIES or CLOSED. The device's loop sets it, and any thread may read it."""

    __slots__ = ("level", "_waiting")

    def __init__(self) -> None:
        self.level = OPEN
        self._waiting: set[asyncio.Future[None]] = set()

    def admits(self, is_copy: bool) -> bool:
        """Return whether a piece of work may begin. is_copy: whether it moves bytes between tiers."""
        return self.level == OPEN or (is_copy and self.level == COPIES)

    def set(self, level: int) -> None:
        """Set the level, on the device's loop. OPEN wakes every job that waits in `opened`."""
        self.level = level
        if level == OPEN:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Whether a job waits for the gate to open so that it can issue work."""
        return bool(self._waiting)

    async def opened(self) -> None:
        """Wait until the gate is open, on the device's loop.

        No watchdog covers this wait: turns go round by a clock, so it ends.
        """
        while self.level != OPEN:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)


#: The gate of the share whose job runs in this context; None outside jobs.
GATE: ContextVar[Gate | None] = ContextVar("asynctile_gate", default=None)
