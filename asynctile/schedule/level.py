"""A level: one tier, or the spill file, in the course of a step. Pure.

It records where each tile stands, in what state, and which entries used which bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from asynctile.schedule.edges import ByteUsers
from asynctile.schedule.schedule import NOBODY, Place, Standing
from asynctile.storage.demand import align
from asynctile.storage.residency import ABSENT, State
from asynctile.storage.tile import Tile


class Level:
    """Tier `number`, whose tiles begin at multiples of `alignment`. is_packed: at given offsets; otherwise in slots.

    With slots, a persistent tile has one of its own and temporaries share the others: of each size, up to `spread[size]` slots.
    A temporary takes the slot that was freed first. If fewer than `apart` are free, it takes a new one, if there is one left.
    What overwrites a slot waits for those who read it, so tiles in turn in one slot would be computed one after another.
    states: of the tiles whose bytes are in this level or below. places: of the tiles that stand here.
    written: for each tile, the entry that wrote it here last. saved: the entry that wrote its copy below.
    """

    def __init__(
        self, number: int, alignment: int, spread: Mapping[int, int], apart: float = math.inf, *, is_packed: bool
    ) -> None:
        self.number = number
        self.is_packed = is_packed
        self.states: dict[Tile, State] = {}
        self.places: dict[Tile, Place] = {}
        self.written: dict[Tile, int] = {}
        self.saved: dict[Tile, int] = {}
        self._alignment = alignment
        self._new_slots = dict(spread)
        self._apart = apart
        self._own: dict[Tile, Place] = {}
        self._free: dict[int, deque[Place]] = defaultdict(deque)
        self._made: dict[int, int] = defaultdict(int)
        self._held_nbytes = 0
        #: the most bytes that ever stood here
        self.peak_nbytes = 0
        self._users: dict[int, ByteUsers] = defaultdict(ByteUsers)

    def put(self, tile: Tile, offset: int | None = None) -> Place:
        """Place a tile here. offset: where, if the level is packed."""
        size = align(tile.nbytes, self._alignment)
        if self.is_packed:
            assert offset is not None, f"the packing has no offset for {tile.name}"
            place = Place(self.number, size, offset)
        elif tile.persistent:
            place = self._own.get(tile) or self._own.setdefault(tile, self._new(size))
        else:
            place = self._shared(size)
        if tile not in self.places:
            self._held_nbytes += size
            self.peak_nbytes = max(self.peak_nbytes, self._held_nbytes)
        self.places[tile] = place
        return place

    def leave(self, tile: Tile, state: State | None) -> None:
        """Remove a tile from its place, if it has one. state: its state from now on; None: the tile is dead and forgotten."""
        place = self.places.pop(tile, None)
        if place is not None:
            self._held_nbytes -= place.nbytes
            if not self.is_packed and not tile.persistent:
                self._free[place.nbytes].append(place)
        self.written.pop(tile, None)
        if state is None:
            self.states.pop(tile, None)
            self.saved.pop(tile, None)
        else:
            self.states[tile] = state

    def read(self, place: Place, entry: int, waits: set[int]) -> None:
        """Record that `entry` reads the bytes of `place`; add the entries that wrote them to `waits`."""
        begin = place.index if self.is_packed else place.index * place.nbytes
        self._users_of(place).read(begin, begin + place.nbytes, entry, waits)

    def write(self, place: Place, entry: int, after: set[int]) -> None:
        """Record that `entry` overwrites the bytes of `place`; add to `after` the entries that must be over before."""
        begin = place.index if self.is_packed else place.index * place.nbytes
        self._users_of(place).write(begin, begin + place.nbytes, entry, after)

    def stand(self, tiles: Iterable[Tile]) -> Iterator[Standing]:
        """Yield the Standing of each of `tiles` that the level knows."""
        for tile in tiles:
            state = self.states.get(tile)
            if state is not None:
                place = None if state is ABSENT else self.places.get(tile)
                yield Standing(tile, self.number, state, place, self.written.get(tile, NOBODY), self.saved.get(tile, NOBODY))

    def _shared(self, size: int) -> Place:
        free = self._free[size]
        is_new = len(free) < self._apart and self._new_slots.get(size, 0) > 0
        if is_new:
            self._new_slots[size] -= 1
        return self._new(size) if is_new or not free else free.popleft()

    def _new(self, size: int) -> Place:
        self._made[size] += 1
        return Place(self.number, size, self._made[size] - 1)

    def _users_of(self, place: Place) -> ByteUsers:
        return self._users[0 if self.is_packed else place.nbytes]


class Levels(NamedTuple):
    """The levels of a step.

    tops: where operations run, by device. ram: below them over links; None if RAM is the only top. disk: below RAM, or None.
    """

    tops: tuple[Level, ...]
    ram: Level | None
    disk: Level | None
