"""A walk through a program that repeats: who stands in a tier, and where, decided once for all runs. What decides is stays.py
and packer.py, compiled; here is what they are given and what came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from asynctile.schedule.state import WalkState
from asynctile.schedule.stays import walk
from asynctile.schedule.uses import Uses
from asynctile.storage.tile import NEVER

#: A byte copied within the tier costs this part of one that comes from below or goes there.
COPY_COST = 1 / 32


class NoRoom(Exception):
    """What one entry uses does not fit at once."""


class Stay(NamedTuple):
    """Of a tile that stands when a run begins. since: the entry of the run before at which it came, -1 if it stood throughout.
    again: the position at which its bytes are needed first. dirty: what is below is older.
    """

    since: int
    again: int
    dirty: bool


class Walk:
    """A run of `uses` in `cap` bytes. ahead: bytes that may have been brought in before they are used. slack: bytes that stay
    free as long as somebody can leave for them. start: who stands when it begins. kept: those that must stand when it ends,
    None for whoever does. home: their offsets between two runs, and the walk finds an address for everyone; else a tile fits
    if there are as many bytes free.

    NoRoom where an entry does not fit. loaded, written, copied: bytes from below, to it, and within the tier. peak: the most
    bytes that stood at once. seconds: what a run takes, about. moves: MOVE records, in order. tiles: TILE
    records, as they are at the end.
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
        home: Mapping[int, int] | None = None,
    ) -> None:
        self._uses = uses
        room = 0 if home is None else 2 * len(uses.uses)
        while True:
            self._tables = tables = WalkState(uses, cap, room)
            tables.set(ahead=ahead, slack=slack, keeps=kept is not None, has_places=home is not None)
            _set_start(tables, start, kept, home)
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
        """Bytes from and to below, and a small part of those within the tier."""
        return self.loaded + self.written + COPY_COST * self.copied

    def standing(self) -> dict[int, Stay]:
        """Who stands between two runs, seen from the one that comes: over a link no inputs, in RAM all of them. NoRoom if
        these do not fit.
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
    """Who stands before the first run of all: over a link nobody, in RAM what the host has written. NoRoom if it does not
    fit.
    """
    if uses.has_link:
        return {}
    if uses.sizes[uses.inputs].sum() > cap:
        raise NoRoom
    return {tile: Stay(0, NEVER - len(uses), True) for tile in uses.inputs}


def _set_start(
    tables: WalkState, start: Mapping[int, Stay], kept: Collection[int] | None, home: Mapping[int, int] | None
) -> None:
    tiles, numbers = tables["tiles"], list(start)
    if start:
        tiles["stands"][numbers] = True
        came, tiles["again"][numbers], tiles["dirty"][numbers] = zip(*start.values(), strict=True)
    if kept is not None:
        tiles["kept"][list(kept)] = True
    if home:
        tables.set(homes=len(home))
        tables["homes"]["key"][: len(home)] = list(home)
        tiles["home"][list(home)] = list(home.values())
        tiles["came"][numbers] = came
