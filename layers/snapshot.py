"""A copy of a training's tiles in RAM, so that a checkpoint can be written while steps go on.

Covers `Snapshot`: borrowing the RAM from the engine, which counts it against host_memory, and giving it back. What is
written from it is checkpoint.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from numpy.typing import NDArray

from asynctile.memory.caps import Loan
from asynctile.share import Share
from asynctile.storage.tile import Tile


class Snapshot:
    """Made by `await Snapshot.take(...)` on the device's loop; `give_back` there ends it."""

    def __init__(self, loan: Loan) -> None:
        self._loan = loan
        self._copies: dict[Tile, NDArray[Any]] = {}

    @classmethod
    async def take(cls, engine: Share, tiles: Iterable[Tile], who: str) -> Self | None:
        """Copy the tiles; None, with nothing copied, if the engine has no room.

        No other program runs meanwhile: one that wanted the RAM back would keep the engine until it has it, and this would
        wait for the engine. who: wants the copies, for messages.
        """
        tiles = list(tiles)
        async with engine.exclusive():
            loan = engine.borrow(sum(tile.nbytes for tile in tiles), who)
            if loan is None:
                return None
            snapshot = cls(loan)
            try:
                snapshot._copies |= zip(tiles, await engine.copies(tiles), strict=True)
            except BaseException:
                snapshot.give_back()
                raise
            return snapshot

    async def read(self, tile: Tile) -> NDArray[Any]:
        """The bytes that the tile had, as `engine.read` would have given them."""
        return self._copies[tile]

    def give_back(self) -> None:
        """Let the copies go, and tell the engine."""
        self._copies.clear()
        self._loan.give_back()
