"""A top: one device in the course of a step, with its level, its view of the program and the moves in its memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from asynctile.schedule.below import Above
from asynctile.schedule.level import Level
from asynctile.schedule.uses import tiles_of
from asynctile.storage.residency import CLEAN, DIRTY, STORED
from asynctile.storage.tile import Tile


class Top:
    """One device in the course of a step. changed: the tiles that it has changed since they came.

    program: its view. tiles: those that it knows of, of its view and `more`. standing: the persistent ones.
    """

    def __init__(self, level: Level, above: Above, more: Sequence[Tile]) -> None:
        view, self.packing = above
        self.level = level
        self.program = view.program
        self.changed = set(self.packing.changed)
        self.tiles = dict.fromkeys([*more, *tiles_of(self.program)])
        self.standing = [tile for tile in self.tiles if tile.persistent]
        self._at = dict(zip(view.positions, range(len(view.positions)), strict=True))

    def at(self, position: int) -> int | None:
        """Return which entry of its view the entry at `position` of the whole program is; None if it is not among them."""
        return self._at.get(position)

    def has(self, tile: Tile) -> bool:
        """Return whether the tile's bytes stand here."""
        return tile in self.level.places and self.level.states.get(tile) in (CLEAN, DIRTY)

    def lose(self, tile: Tile) -> None:
        """Drop a tile that was changed elsewhere."""
        if tile in self.tiles:
            self.level.leave(tile, STORED)
            self.changed.discard(tile)
