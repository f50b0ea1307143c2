"""A copy of a training's tiles in RAM, so that a checkpoint can be written while steps go on.

Covers `Snapshot`: borrowing the RAM from the engine, which counts it against host_memory, and giving it back. What is
written from it is checkpoint.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from numpy.typing import NDArray

from asynctile.engine import Engine
from asynctile.handle import Handle


class Snapshot:
    """Made by `await Snapshot.take(...)`; `give_back` ends it."""

    def __init__(self, engine: Engine, nbytes: int) -> None:
        self._engine = engine
        self._nbytes = nbytes
        self._copies: dict[Handle, NDArray[Any]] = {}

    @classmethod
    async def take(cls, engine: Engine, groups: Iterable[Sequence[Handle]]) -> Self | None:
        """Copy the tiles of all groups, a group at a time; None, with nothing copied, if the engine has no room.

        No step may run meanwhile.
        """
        groups = list(groups)
        nbytes = sum(tile.nbytes for tiles in groups for tile in tiles)
        if not await engine.try_borrow(nbytes):
            return None
        snapshot = cls(engine, nbytes)
        try:
            for tiles in groups:
                snapshot._copies |= zip(tiles, await engine.read_all(tiles), strict=True)
        except BaseException:
            snapshot.give_back()
            raise
        return snapshot

    async def read(self, tile: Handle) -> NDArray[Any]:
        """The bytes that the tile had, as `engine.read` would have given them."""
        return self._copies[tile]

    def give_back(self) -> None:
        """Let the copies go, and tell the engine."""
        self._copies.clear()
        self._engine.give_back(self._nbytes)
