"""A copy of a training's tiles in RAM, so that steps go on while a checkpoint is written.

Covers `Snapshot`, which borrows the RAM from the engine (counted against host_memory) and gives it back. checkpoint.py writes
from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from numpy.typing import NDArray

from asynctile.memory.caps import Loan
from asynctile.runtime import Runtime
from asynctile.storage.tile import Tile


class Snapshot:
    """Copies of tiles, made by `await Snapshot.take(...)` on the device's loop and ended there by `give_back`."""

    def __init__(self, loan: Loan) -> None:
        self._loan = loan
        self._copies: dict[Tile, NDArray[Any]] = {}

    @classmethod
    async def take(cls, runtime: Runtime, tiles: Iterable[Tile], who: str) -> Self | None:
        """Return copies of the tiles; None, with nothing copied, if the engine has no room.

        runtime: of the engine. who: names the user of the copies in messages.

        No other program runs meanwhile. Otherwise there could be a deadlock: a program that wants the RAM back keeps the
        engine until it has it, and this method would wait for the engine.
        """
        tiles = list(tiles)
        async with runtime.exclusive():
            loan = runtime.tiers.caps.borrow(sum(tile.nbytes for tile in tiles), who)
            if loan is None:
                return None
            snapshot = cls(loan)
            try:
                snapshot._copies |= zip(tiles, await runtime.copies(tiles), strict=True)
            except BaseException:
                snapshot.give_back()
                raise
            return snapshot

    async def read(self, tile: Tile) -> NDArray[Any]:
        """Return the bytes that the tile had when it was copied, as `Runtime.read` would have returned them."""
        return self._copies[tile]

    def give_back(self) -> None:
        """Drop the copies, and return the RAM to the engine."""
        self._copies.clear()
        self._loan.give_back()
