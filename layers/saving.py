"""A save that goes on behind a training: `Saving`, one at a time. What it writes is checkpoint.py."""

from __future__ import annotations

import asyncio

from asynctile.errors import CheckpointError, DeviceError
from asynctile.share import Share


class Saving:
    """The save that was left to a task and that nobody has asked about since, if there is one."""

    def __init__(self, engine: Share) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None

    def begin(self, task: asyncio.Task[None] | None) -> None:
        """`task` writes it; None: it is written already."""
        self._task = task

    @property
    def is_under_way(self) -> bool:
        """Whether it goes on; once it does not, `ended` returns or raises at once."""
        return self._task is not None and not self._task.done()

    async def ended(self) -> None:
        """Wait for it; raises its error, once. Cancelling this does not cancel it. From any loop."""
        self._engine.check_process()
        task = self._task
        if task is None:
            return
        if not task.done():
            try:
                await self._engine.call(asyncio.wait([task]))
            except DeviceError:  # the engine is being closed: it ends saves before those who wait for them
                if not task.done():
                    raise
        if self._task is task:
            self._task = None
        if task.cancelled():
            raise CheckpointError("a save was broken off since its engine closed; the checkpoint before it is whole")
        task.result()
