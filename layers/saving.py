"""A save that goes on behind a training: `Saving`, one at a time; how far it is: `Counted`. What it writes is checkpoint.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asynctile.errors import CheckpointError, DeviceError
from asynctile.layers.exchange import ReadTile
from asynctile.share import Share
from asynctile.storage.tile import Tile

#: Called with how much is done, and how much is to be done in all.
Progress = Callable[[int, int], object]


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


class Counted:
    """Tiles as `read` gives them, of which `progress` is told. total: bytes; small files are not in it, and it is reached all
    the same.
    """

    def __init__(self, read: ReadTile, total: int, progress: Progress | None) -> None:
        self._read, self._total, self._progress = read, total, progress
        self._done = 0

    async def read(self, tile: Tile) -> Any:
        """Whoever asks has written the tile before."""
        array = await self._read(tile)
        self.add(tile.nbytes)
        return array

    def add(self, nbytes: int) -> None:
        """So much more is done, yet not all: the folder is not in its place."""
        self._done = min(self._done + nbytes, self._total - 1)
        self._tell()

    def end(self) -> None:
        """All is done."""
        self._done = self._total
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)
