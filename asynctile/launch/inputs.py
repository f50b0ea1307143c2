"""Tiles that nobody has written yet, and the coroutines that wait for them.

A tile's future resolves when a launch that writes the tile has been enqueued, when a job that writes it has ended, or
when the host has put bytes in it. From then on, events order the uses of the tile. Single launches need this, since
they come in any order; schedules do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from asynctile.memory.copies import Copies
from asynctile.program.operation import WRITE, Operation
from asynctile.program.program import Entry
from asynctile.storage.tile import Tile
from asynctile.streams.run_ahead import RunAhead


class Inputs:
    """The awaited inputs of one share. copies: know of every tile whether it has bytes anywhere."""

    def __init__(self, copies: Copies, run_ahead: RunAhead) -> None:
        self._copies = copies
        self._run_ahead = run_ahead
        #: futures of all and only the tiles that somebody waits for
        self.awaited: dict[Tile, asyncio.Future[None]] = {}

    def missing(self, entry: Entry) -> Tile | None:
        """Return a tile that `entry` reads and that has not been written yet; None if there is none."""
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if how != WRITE and not self._copies.is_written(tile):
                return tile
        return None

    async def enqueued(self, entry: Entry) -> None:
        """Wait until the work that writes each input of `entry` is enqueued.

        StalledError, which names an input, if nothing moves.
        """
        while (tile := self.missing(entry)) is not None:
            future = self.awaited.get(tile)
            if future is None:
                future = self.awaited[tile] = asyncio.get_running_loop().create_future()
            await self._run_ahead.told(future, partial(_waits, entry, tile))

    def announce(self, tiles: Iterable[Tile]) -> None:
        """Wake the coroutines that wait for these tiles, which have been written or will be by enqueued work."""
        for tile in tiles:
            if (future := self.awaited.pop(tile, None)) is not None and not future.done():
                future.set_result(None)


def _waits(entry: Entry, tile: Tile) -> str:
    names = ", ".join(operand.name for operand in entry.tiles)
    what = entry.kernel if isinstance(entry, Operation) else "fetch"
    return (
        f"{what}({names}) waits for tile {tile.name}, which nobody has written: launch the operation that writes it, or "
        "store it"
    )
