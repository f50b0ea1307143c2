"""Where tiles stand between two runs: the seam, where a program's runs end, and the start of a run anywhere else. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from asynctile.storage.tile import Tile

#: The offset of a tile that stands in a slot.
IN_SLOT = -1


class Seam(NamedTuple):
    """Where the tiles of a program stand in one tier between two of its runs.

    offsets: of each tile, in bytes; in a tier with slots they mean nothing. changed: the tiles that are newer than below.
    since: for some tiles, when they came in the run before, as a position counted back from its end. ahead, slack: of the walk
    that ends here, see `Walk`.
    """

    offsets: Mapping[Tile, int]
    changed: Collection[Tile]
    since: Mapping[Tile, int] = {}
    ahead: int = 0
    slack: int = 0


class Stands(NamedTuple):
    """A tile in a tier. offset: in bytes, or IN_SLOT. changed: it is newer than below."""

    tile: Tile
    offset: int
    changed: bool


class Start(NamedTuple):
    """Where a run begins.

    tiers: from the top down, the tiles that stand there: the program's own, and in packed tiers all others. unwritten: the
    program's own tiles that nobody has written and that stand nowhere.
    """

    tiers: tuple[tuple[Stands, ...], ...]
    unwritten: frozenset[Tile]

    def tiles(self) -> list[Tile]:
        """Return every tile that stands somewhere, once."""
        return list(dict.fromkeys(one.tile for stands in self.tiers for one in stands))
