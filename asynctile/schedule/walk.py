"""The Python side of a walk: the arguments of the compiled walk (stays.py, packer.py), and its results.

A walk goes through a program, and decides which tiles stand in a tier, and where: once for all runs from the program's seam,
and once for each other start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from asynctile.schedule.state import WalkState
from asynctile.schedule.stays import walk
from asynctile.schedule.uses import Uses
from asynctile.storage.tile import NEVER

#: The cost of a byte copied within the tier, relative to a byte loaded from below or written there.
COPY_COST = 1 / 32


class NoRoom(Exception):
    """The tiles that one entry uses do not fit at once."""


class Stay(NamedTuple):
    """A tile that stands when a run begins.

    since: the entry of the run before at which it came, -1 if it stood throughout. again: the position at which its bytes are
    needed first. dirty: the copy below is older.
    """

    since: int
    again: int
    dirty: bool


class Ends(NamedTuple):
    """Addresses at both ends of a run.

    at: the offset of each tile that stands when it begins. home: of each tile that stands when it ends. came: for tiles with a
    home, the entry of the run before at which they came. clean: the tiles with a home that must not be newer than below then.
    """

    at: Mapping[int, int]
    home: Mapping[int, int]
    came: Mapping[int, int]
    clean: Collection[int] = ()


class Walk:
    """One run of `uses` in `cap` bytes; NoRoom if an entry does not fit.

    ahead: the most bytes that may be loaded before they are used. slack: bytes that stay free as long as a tile can be evicted
    for them. start: the tiles that stand when the run begins.
    kept: the tiles that must stand when it ends; None: any. ends: with them, the walk finds an address for every tile. Without
    them, a tile fits if as many bytes are free.

    loaded, written, copied: bytes from below, to below, and within the tier. peak: the most bytes that stood at once. seconds:
    a rough time of the run. moves: MOVE records, in order. tiles: TILE records, as they are at the end.
    """

    def __init__(
        self,
        uses: Uses,
        cap: int,
        ahead: int,
        slack: int,
        start: Mapping[int, Stay],
        *,
        kept: Collection[int] | None = None,
        ends: Ends | None = None,
    ) -> None:
        self._uses = uses
        room = 0 if ends is None else 2 * len(uses.uses)
        while True:
            self._tables = tables = WalkState(uses, cap, room)
            tables.set(ahead=ahead, slack=slack, keeps=kept is not None, has_places=ends is not None)
            _set_start(tables, start, kept, ends)
            fits = walk(tables.address, False)
            if (moves := int(tables.state["moves"][0])) <= room:
                break
            room = moves
        if not fits:
            raise NoRoom
        assert not tables.state["faults"], "a plan of memory put two tiles in one place"
        self.moves, self.tiles = tables["moves"][:moves], tables["tiles"]
        names = "loaded", "written", "copied", "used", "peak"
        self.loaded, self.written, self.copied, self.used, self.peak = (int(tables.state[name][0]) for name in names)
        self.seconds = float(tables.state["time_s"][0])

    @property
    def moved(self) -> float:
        """Bytes from and to the tier below, plus COPY_COST of the bytes copied within the tier."""
        return self.loaded + self.written + COPY_COST * self.copied

    def standing(self) -> dict[int, Stay]:
        """Return the tiles that stand between two runs, seen from the next one: over a link no inputs, in RAM all of them.

        Raises NoRoom if the inputs do not fit.
        """
        if not self._uses.has_link and not walk(self._tables.address, True):
            raise NoRoom
        stands = self.tiles["stands"].copy()
        if self._uses.has_link:
            stands[self._uses.inputs] = False
        numbers = np.flatnonzero(stands)
        tiles, length = self.tiles[numbers], len(self._uses)
        rows = zip(numbers.tolist(), *(tiles[name].tolist() for name in ("since", "again", "dirty")), strict=True)
        return {number: Stay(since, again - length, dirty) for number, since, again, dirty in rows}


def inputs_alone(uses: Uses, cap: int) -> dict[int, Stay]:
    """Return the tiles that stand before the very first run: over a link none, in RAM the inputs that the host has written.

    Raises NoRoom if they do not fit.
    """
    if uses.has_link:
        return {}
    if uses.sizes[uses.inputs].sum() > cap:
        raise NoRoom
    return {tile: Stay(0, NEVER - len(uses), True) for tile in uses.inputs}


def _set_start(
    tables: WalkState, start: Mapping[int, Stay], kept: Collection[int] | None, ends: Ends | None
) -> None:
    tiles, numbers = tables["tiles"], list(start)
    if start:
        tiles["stands"][numbers] = True
        _, tiles["again"][numbers], tiles["dirty"][numbers] = zip(*start.values(), strict=True)
    if kept is not None:
        tiles["kept"][list(kept)] = True
    if ends is not None:
        tables.set(homes=len(ends.home))
        tables["homes"]["key"][: len(ends.home)] = list(ends.home)
        for name in ("at", "home", "came"):
            values: Mapping[int, int] = getattr(ends, name)
            tiles[name][list(values)] = list(values.values())
        tiles["clean"][list(ends.clean)] = True
