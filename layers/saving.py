"""A save in the background of a training: `Saving`, one at a time, and its progress: `Counted`. checkpoint.py writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asynctile.errors import CheckpointError, DeviceError
from asynctile.layers.weight_files import ReadTile
from asynctile.runtime import Runtime
from asynctile.storage.tile import Tile

#: Called with the bytes done and the bytes in all.
Progress = Callable[[int, int], object]


class Saving:
    """The background save of a model, if there is one whose end was not awaited yet."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None

    def begin(self, task: asyncio.Task[None] | None) -> None:
        """Remember `task`, which writes the save; None if it is written already."""
        self._task = task

    @property
    def is_under_way(self) -> bool:
        """Whether the save is still being written. Once it is not, `ended` returns or raises at once."""
        return self._task is not None and not self._task.done()

    async def ended(self) -> None:
        """Wait for the save, from any loop, and raise its error, once. Cancelling this does not cancel the save."""
        self._runtime.life.check_process()
        task = self._task
        if task is None:
            return
        if not task.done():
            try:
                await self._runtime.call(asyncio.wait([task]))
            except DeviceError:  # the engine is closing, and it ends saves before it ends their waiters
                if not task.done():
                    raise
        if self._task is task:
            self._task = None
        if task.cancelled():
            raise CheckpointError("a save was cancelled because its engine closed; the previous checkpoint is intact")
        task.result()


class Counted:
    """Tiles from `read`, with their bytes reported to `progress`.

    total: bytes in all, without small files. Only `end` reports that the total is reached.
    """

    def __init__(self, read: ReadTile, total: int, progress: Progress | None) -> None:
        self._read, self._total, self._progress = read, total, progress
        self._done = 0

    async def read(self, tile: Tile) -> Any:
        """Return the tile's bytes, and count them. The caller has written the tile before."""
        array = await self._read(tile)
        self.add(tile.nbytes)
        return array

    def add(self, nbytes: int) -> None:
        """Count `nbytes` more, but stay below the total: the folder is not in its place yet."""
        self._done = min(self._done + nbytes, self._total - 1)
        self._tell()

    def end(self) -> None:
        """Report that everything is done."""
        self._done = self._total
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)
