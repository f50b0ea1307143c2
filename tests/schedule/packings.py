"""Random packings, and the law of all packings: nothing overlaps, operands are there, a step ends where it began.

asynctile/schedule/packing.py makes good packings. These are as good as chance makes them, but valid.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from asynctile.program.operation import HOST, READ, UPDATE, WRITE
from asynctile.program.program import Entry, Mark, Program
from asynctile.program.view import views_of
from asynctile.schedule.below import Above
from asynctile.schedule.packing import Act, Packing, Planned
from asynctile.storage.demand import align
from asynctile.storage.tile import NEVER, Tile

#: The number of entries ahead of which a drawn packing may load.
AHEAD = 12


def alone(packing: Packing) -> Above:
    """Return an only device, whose moves are those of `packing`."""
    (view,) = views_of(packing.program)
    return Above(view, packing)



class Floor:
    """The tiles in memory under a cap, by offset. peak_nbytes: the most bytes that were ever in use."""

    def __init__(self, cap: int, alignment: int) -> None:
        self.cap = cap
        self.alignment = alignment
        self.where: dict[Tile, int] = {}
        self.peak_nbytes = 0

    def size(self, tile: Tile) -> int:
        return align(tile.nbytes, self.alignment)

    def put(self, tile: Tile, offset: int) -> None:
        """Place a tile; AssertionError if another tile is there already."""
        size = self.size(tile)
        assert offset % self.alignment == 0 and 0 <= offset <= self.cap - size, f"{tile.name} at {offset} of {self.cap}"
        for other, place in self.where.items():
            apart = place + self.size(other) <= offset or offset + size <= place
            assert apart, f"{tile.name} at {offset} lies over {other.name} at {place}"
        self.where[tile] = offset
        self.peak_nbytes = max(self.peak_nbytes, sum(map(self.size, self.where)))

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield the free ranges as (offset, bytes)."""
        begin = 0
        for tile, offset in sorted(self.where.items(), key=lambda item: item[1]):
            yield begin, offset - begin
            begin = offset + self.size(tile)
        yield begin, self.cap - begin


class Walk:
    """A step carried out by a packing, entry by entry. dirty: tiles newer here than below. below: tiles with bytes below."""

    def __init__(self, program: Program, floor: Floor, over_link: bool) -> None:
        self.program = program
        self.floor = floor
        self.over_link = over_link
        inputs = set(program.inputs.values())
        self.dirty: set[Tile] = set() if over_link else {*inputs}
        here = () if over_link else inputs & floor.where.keys()  # where the host writes them
        self.below = {*program.first_uses, *inputs}.difference(here)

    def step(self, packing: Packing) -> None:
        assert len(packing.moves) == len(self.program) + 1
        for index, moves in enumerate(packing.moves):
            for planned in moves:
                self.move(planned)
            if index < len(self.program):
                self.perform(index, dict(packing.births.get(index, ())))

    def move(self, planned: Planned) -> None:
        act, tile, offset = planned
        where = self.floor.where
        if act is Act.LEAVE:
            assert where.pop(tile) == offset, f"{tile.name} stands elsewhere"
            self._come_down(tile)
        elif act is Act.COPY:
            old = where[tile]
            assert abs(old - offset) >= self.floor.size(tile), f"{tile.name} is copied over itself"
            del where[tile]
            self.floor.put(tile, offset)
        else:
            assert tile not in where and tile in self.below, f"{tile.name} cannot be loaded"
            self.floor.put(tile, offset)

    def perform(self, index: int, births: dict[Tile, int]) -> None:
        entry, where = self.program.entries[index], self.floor.where
        for tile, offset in births.items():
            assert tile not in where, f"{tile.name} stands already"
            self.floor.put(tile, offset)
        if isinstance(entry, Mark):
            self._rewrite(entry)
        elif entry.device == HOST and self.over_link:
            self._perform_on_host(entry)
        else:
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                assert tile in where, f"{tile.name}, an operand of entry {index}, is not there"
                assert tile not in births or how == WRITE, f"{tile.name} was not loaded"
                if how != READ:
                    self.dirty.add(tile)
                    self.below.discard(tile)
        for tile, use in zip(entry.tiles, self.program.next_uses[index], strict=True):
            if use == NEVER and not tile.persistent:
                where.pop(tile, None)
                self.dirty.discard(tile)

    def changed(self) -> set[Tile]:
        """Return the tiles that are newer than below when a step ends; the host writes inputs before the next step."""
        return {*self.dirty, *(() if self.over_link else self.program.inputs.values())} & self.floor.where.keys()

    def _perform_on_host(self, entry: Entry) -> None:
        where = self.floor.where
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            assert tile not in where or tile not in self.dirty or how == WRITE, f"{tile.name} has not come down"
            assert how == WRITE or tile in self.below, f"{tile.name} is not in RAM"
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if how != READ:
                where.pop(tile, None)
                self.dirty.discard(tile)
                self.below.add(tile)

    def _rewrite(self, mark: Mark) -> None:
        for tile in self.program.rewritten[mark.name]:
            if self.over_link:
                self.floor.where.pop(tile, None)
                self._come_down(tile)
            else:
                assert tile in self.floor.where, f"{tile.name} has no place for what the host writes"
                self.dirty.add(tile)
                self.below.discard(tile)

    def _come_down(self, tile: Tile) -> None:
        self.dirty.discard(tile)
        self.below.add(tile)


def check(packing: Packing, *, over_link: bool) -> None:
    """Raise AssertionError for a packing that no step could follow."""
    walk = _begun(packing, over_link)
    for _ in range(2):  # the second step finds changed what the first has changed
        walk.step(packing)
        assert walk.floor.where == packing.start, "a step does not end where it began"
        assert packing.changed == walk.changed(), "who is newer than below is not who was changed"
    assert walk.floor.peak_nbytes <= packing.cap


def _begun(packing: Packing, over_link: bool) -> Walk:
    """Return a walk that has the tiles of the start, all of them unchanged."""
    program, floor = packing.program, Floor(packing.cap, packing.alignment)
    for tile, offset in packing.start.items():
        assert tile.persistent, f"{tile.name} does not stay between steps"
        floor.put(tile, offset)
    return Walk(program, floor, over_link)


def drawn(program: Program, cap: int, *, alignment: int, over_link: bool, chance: random.Random) -> Packing:
    """Draw a valid packing. `cap` must hold the operands of each operation."""
    return _Draw(program, Floor(cap, alignment), over_link, chance).packing()


class _Draw:
    def __init__(self, program: Program, floor: Floor, over_link: bool, chance: random.Random) -> None:
        self.program, self.floor, self.chance = program, floor, chance
        self.over_link = over_link
        self.moves: list[Planned] = []
        self.start = self._start()
        self.walk = Walk(program, floor, over_link)
        self.walk.dirty.update(self.start)  # any of them may be dirty, as far as is known yet

    def packing(self) -> Packing:
        births, moves = {}, []
        for index, entry in enumerate(self.program.entries):
            if self.chance.random() < 0.1:
                self._load_early(index)
            born = self._make_ready(entry)
            moves.append(tuple(self.moves))
            self.moves = []
            if born:
                births[index] = tuple(born.items())
            self.walk.perform(index, born)
        self._go_back()
        moves.append(tuple(self.moves))
        found = Packing(self.program, self.floor.cap, self.floor.alignment, self.start, frozenset(), tuple(moves), births)
        (walk := _begun(found, self.over_link)).step(found)
        return replace(found, changed=frozenset(walk.changed()))

    def _start(self) -> dict[Tile, int]:
        inputs = list(self.program.inputs.values())
        others = [tile for tile in self.program.standing if tile not in inputs]
        self.chance.shuffle(others)
        most = self.chance.uniform(0, self.floor.cap)
        found: dict[Tile, int] = {}
        for tile in [*([] if self.over_link else inputs), *others]:
            spots = self._spots(tile)
            if spots and sum(map(self.floor.size, found)) < most:
                found[tile] = self.chance.choice(spots)
                self.floor.put(tile, found[tile])
        return found

    def _make_ready(self, entry: Entry) -> dict[Tile, int]:
        """Load the operands of an entry; return the places of those that it will write."""
        if isinstance(entry, Mark):
            tiles = () if self.over_link else self.program.rewritten[entry.name]
            wanted = dict.fromkeys(tiles, WRITE)
        elif entry.device == HOST and self.over_link:
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if how != WRITE and tile in self.floor.where and tile in self.walk.dirty:
                    self._leave(tile)
            return {}
        else:
            wanted = {}
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                wanted[tile] = how if wanted.get(tile, how) == how else UPDATE
        for _ in range(8):
            born = self._try(wanted)
            if born is not None:
                return born
        for tile in list(self.floor.where):  # they are in each other's way
            self._leave(tile)
        born, at = {}, 0
        for tile, how in wanted.items():
            if how == WRITE:
                born[tile] = at
            else:
                self._do(Act.LOAD, tile, at)
            at += self.floor.size(tile)
        return born

    def _try(self, wanted: dict[Tile, str]) -> dict[Tile, int] | None:
        born: dict[Tile, int] = {}
        for tile, how in wanted.items():
            if tile in self.floor.where:
                continue
            spots = self._make_room(tile, wanted)
            if not spots:
                for one in born:
                    del self.floor.where[one]
                return None
            spot = self.chance.choice(spots)
            if how == WRITE:
                born[tile] = spot
                self.floor.put(tile, spot)  # so that no other tile takes it
            else:
                self._do(Act.LOAD, tile, spot)
        for tile in born:
            del self.floor.where[tile]
        return born

    def _make_room(self, tile: Tile, held: dict[Tile, str]) -> list[int]:
        others = [other for other in self.floor.where if other not in held]
        self.chance.shuffle(others)
        while True:
            spots = self._spots(tile)
            if spots or not others:
                return spots
            other = others.pop()
            elsewhere = [at for at in self._spots(other) if abs(at - self.floor.where[other]) >= self.floor.size(other)]
            if elsewhere and self.chance.random() < 0.3:
                self._do(Act.COPY, other, self.chance.choice(elsewhere))
            else:
                self._leave(other)

    def _load_early(self, index: int) -> None:
        seen: set[Tile] = set()
        for entry in self.program.entries[index : index + AHEAD]:
            if isinstance(entry, Mark) or entry.device == HOST:
                break
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                may = tile not in seen and tile not in self.floor.where and how != WRITE and tile in self.walk.below
                seen.add(tile)
                if may and (spots := self._spots(tile)):
                    self._do(Act.LOAD, tile, self.chance.choice(spots))

    def _go_back(self) -> None:
        for tile, offset in list(self.floor.where.items()):
            if self.start.get(tile) != offset:
                self._leave(tile)
        for tile, offset in self.start.items():
            if tile not in self.floor.where:
                self._do(Act.LOAD, tile, offset)

    def _leave(self, tile: Tile) -> None:
        self._do(Act.LEAVE, tile, self.floor.where[tile])

    def _do(self, act: Act, tile: Tile, offset: int) -> None:
        planned = Planned(act, tile, offset)
        self.moves.append(planned)
        self.walk.move(planned)

    def _spots(self, tile: Tile) -> list[int]:
        """Return offsets where a tile would fit: the ends of holes, and one inside."""
        size, step, found = self.floor.size(tile), self.floor.alignment, []
        for begin, nbytes in self.floor.holes():
            spare = (nbytes - size) // step
            if spare >= 0:
                found += [begin, begin + step * spare, begin + step * self.chance.randint(0, spare)]
        return found
