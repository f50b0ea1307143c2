"""Memories that hold versions of tiles in place of bytes, and the meaning of each entry of a schedule by program order."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from asynctile.program.operation import READ, WRITE, Operation
from asynctile.schedule.decide import Space
from asynctile.schedule.schedule import DISK, RAM, RESULT, Place, Schedule, Scheduled, tier_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.tile import Tile

#: The version of bytes that belong to nobody.
GARBAGE = -1

#: A version of a tile at a place, as an entry reads or writes it.
Version = tuple[Place, Tile, int]


class Memory:
    """The version of each byte range in each tier. A slot is a range of bytes in a memory of the slots of its size."""

    def __init__(self, schedule: Schedule, space: Space) -> None:
        tops = [tier_of(device) for device in range(schedule.program.devices)]
        self._units = {**dict.fromkeys(tops, space.top.alignment), DISK: PAGE}
        caps = dict.fromkeys(tops, space.top.cap)
        if space.ram is not None:
            self._units[RAM], caps[RAM] = space.ram.alignment, space.ram.cap
        self._packed = {tier for tier, cap in caps.items() if cap is not None}
        sizes: dict[tuple[int, int], int] = defaultdict(int)
        for place in schedule.places():
            if place.tier in self._units:
                key, begin, count = self._units_of(place)
                sizes[key] = max(sizes[key], begin + count)
                cap = caps.get(place.tier)
                assert cap is None or 0 <= place.index <= cap - place.nbytes, f"{place} lies beyond the cap"
        self._versions = {key: np.full(size, GARBAGE, np.int64) for key, size in sizes.items()}

    def write(self, place: Place, version: int) -> None:
        key, begin, count = self._units_of(place)
        self._versions[key][begin : begin + count] = version

    def holds(self, place: Place, version: int) -> bool:
        key, begin, count = self._units_of(place)
        return bool((self._versions[key][begin : begin + count] == version).all())

    def _units_of(self, place: Place) -> tuple[tuple[int, int], int, int]:
        unit, is_packed = self._units[place.tier], place.tier in self._packed
        begin = place.index if is_packed else place.index * place.nbytes
        assert begin % unit == 0 and place.nbytes % unit == 0, f"{place} is not aligned to {unit}"
        return (place.tier, 0 if is_packed else place.nbytes), begin // unit, place.nbytes // unit


class Means:
    """The meaning of program order, step after step. newest: the version of each tile so far; every write makes a new one."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.newest: dict[Tile, int] = {}
        self._made = 0

    def make(self, tile: Tile) -> None:
        self._made += 1
        self.newest[tile] = self._made

    def touches(self, entry: Scheduled) -> tuple[list[Version], list[Version]]:
        """Return the versions that the entry reads and writes when its turn comes."""
        if isinstance(entry.what, Tile) and entry.node is not None:
            if entry.places[0].tier < 0:
                return [(entry.places[1], entry.what, self.newest.get(entry.what, GARBAGE))], []
            self.make(entry.what)
            return [], [(entry.places[0], entry.what, self.newest[entry.what])]
        if isinstance(entry.what, Tile):
            version = self.newest.get(entry.what, GARBAGE)
            to, source = ((place, entry.what, version) for place in entry.places)
            return [source], [to] if to[0].tier != RESULT else []
        operands = list(zip(entry.places, entry.what.operands, entry.what.access, strict=True))
        reads = [(place, tile, self.newest.get(tile, GARBAGE)) for place, tile, how in operands if how != WRITE]
        written = {tile: place for place, tile, how in operands if how != READ}
        for tile in written:
            self.make(tile)
        return reads, [(place, tile, self.newest[tile]) for tile, place in written.items()]


def access(entry: Scheduled) -> str:
    """Return the access to each place of an entry."""
    return entry.what.access if isinstance(entry.what, Operation) else WRITE + READ
