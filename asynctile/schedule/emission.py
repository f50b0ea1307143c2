"""Emission: the decisions of packings as one ordered list of entries, each with its places and the entries it waits for.

It follows the tiles of a program through the levels, and records where they stand at the marks of the step. Its only own
decision is which of several equal slots a tile takes, in a level that holds everything. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from asynctile.program.operation import HOST, READ, WRITE, Operation
from asynctile.program.program import Entry, Fetch, Mark
from asynctile.schedule.level import Level, Levels
from asynctile.schedule.packing import Act, Packing, Planned
from asynctile.schedule.schedule import NOBODY, RESULT, Kind, Place, Schedule, Scheduled, Standing
from asynctile.schedule.start import Seam, Start
from asynctile.schedule.uses import has_passed, is_dead, tiles_of
from asynctile.storage.errors import AsynctileError
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, STORED
from asynctile.storage.tile import Tile


class Beneath(NamedTuple):
    """The moves in RAM below a device. packing: over the uses of RAM. dying: by use, the tiles dead in RAM behind it."""

    packing: Packing
    dying: Sequence[Sequence[Tile]]


def emit(levels: Callable[[], Levels], packing: Packing, beneath: Beneath | None) -> Schedule:
    """Return the schedule of a step. levels: makes empty ones. packing: of the top level. beneath: of RAM, if packed."""
    first = _Emission(levels(), packing, beneath)
    schedule = first.schedule()
    above = set[Tile]() if beneath is None else first.alone_above()
    return _Emission(levels(), packing, beneath, above=above).schedule() if above else schedule


def emit_from(start: Start, levels: Levels, packing: Packing, beneath: Beneath | None, seams: Sequence[Seam]) -> Schedule:
    """Return the schedule of a step that begins at `start`, with packings of the same start, and ends at `seams`."""
    return _Emission(levels, packing, beneath, start=start, seams=seams).schedule()


class _Emission:
    """One pass through a program. above: tiles whose only copy is in the top level at the start, though unchanged there.

    start, seams: of a step that ends elsewhere than it begins.
    is_over: the whole program was performed, and tiles return to where they stood. touches: how often RAM was used so far.
    changed: tiles that the top level has changed since they came.
    """

    def __init__(
        self, levels: Levels, packing: Packing, beneath: Beneath | None, *, above: Collection[Tile] = (),
        start: Start | None = None, seams: Sequence[Seam] = (),
    ) -> None:  # fmt: skip
        self.above = above
        self.start = start
        self.seams = tuple(seams)
        self.program = packing.program
        self.packing = packing
        self.beneath = beneath
        self.levels = {level.number: level for level in levels if level is not None}
        self.top, self.ram, self.disk = levels
        self.inputs = set(self.program.inputs.values())
        self.changed = set(packing.changed)
        own = [tile for tile in tiles_of(self.program) if tile.persistent]
        self.standing = list(dict.fromkeys([*own, *(() if start is None else start.tiles())]))
        self.entries: list[Scheduled] = []
        self.stretch = self.fetches = self.touches = 0
        self.is_over = False

    def schedule(self) -> Schedule:
        program, at, stretches = self.program, dict[str, tuple[Standing, ...]](), [0]
        self._begin()
        start = self._stand()
        if self.start is None:
            self.seams = tuple(self._seams())
        for index, entry in enumerate(program.entries):
            self._move_all(self.top, self.packing, index)
            if isinstance(entry, Mark):
                self._give(program.rewritten[entry.name])
                at[entry.name] = self._stand()
                stretches.append(len(self.entries))
                self.stretch += 1
            elif entry.device == HOST and self.ram is not None:
                self._perform_on_host(entry)
            else:
                self._perform(entry)
            self._bury(index)
        self._end()
        peaks = tuple(level.peak_nbytes for level in (self.top, self.ram) if level is not None)
        marks = {name: stretch + 1 for stretch, name in enumerate(at)}
        return Schedule(
            program, tuple(self.entries), tuple(stretches), marks, start, at, self._stand(), self.seams, peaks,
            repeats=self.start is None,
        )  # fmt: skip

    def alone_above(self) -> set[Tile]:
        """Return, at the end, the tiles whose only copy is in the top level though it has not changed them."""
        return {tile for tile in self.packing.start if self.top.states[tile] is DIRTY and tile not in self.changed}

    def _begin(self) -> None:
        """Place every tile where it stands when the step begins."""
        for tile in self.standing:
            self.top.states[tile] = ABSENT if self._is_unwritten(tile) else STORED
        for tile, offset in self.packing.start.items():
            self.top.put(tile, offset)
            self.top.states[tile] = DIRTY if tile in self.changed or tile in self.above else CLEAN
        if self.beneath is not None:
            self._begin_beneath(self.beneath)
        elif self.ram is not None:
            for tile in self._passing() if self.start is None else [one.tile for one in self.start.tiers[-1]]:
                self.ram.put(tile)
                self.ram.states[tile] = DIRTY

    def _is_unwritten(self, tile: Tile) -> bool:
        return self.start is not None and tile in self.start.unwritten

    def _seams(self) -> Iterator[Seam]:
        """Yield the seam of each level, in which the step begins."""
        dirty = {tile for tile in self.top.places if self.top.states[tile] is DIRTY}
        yield self.packing.seam._replace(changed=dirty)
        if self.beneath is not None:
            yield self.beneath.packing.seam
        elif self.ram is not None:
            yield Seam(dict.fromkeys(self.ram.places, 0), frozenset(self.ram.places))

    def _begin_beneath(self, beneath: Beneath) -> None:
        assert self.ram is not None
        for tile in self.standing:
            self.ram.states[tile] = ABSENT if self.top.states[tile] in (DIRTY, ABSENT) else STORED
        for tile, offset in beneath.packing.start.items():
            self.ram.put(tile, offset)
            self.ram.states[tile] = DIRTY if tile in beneath.packing.changed or tile in self.inputs else CLEAN

    def _passing(self) -> Iterator[Tile]:
        """Yield the persistent tiles that are in RAM at some time of a step."""
        found = dict.fromkeys(self.program.inputs.values())
        found |= dict.fromkeys(planned.tile for planned in self.packing.planned() if planned.act is not Act.COPY)
        for entry in self.program.entries:
            if entry.device == HOST:
                found |= dict.fromkeys(entry.tiles)
        return (tile for tile in found if tile.persistent)

    def _move_all(self, level: Level, packing: Packing, index: int) -> None:
        """Emit the moves that `packing` plans before its entry `index`, and place the tiles that the entry makes."""
        for planned in packing.moves[index]:
            self._move(level, planned)
        for tile, offset in packing.births.get(index, ()):
            level.put(tile, offset)

    def _move(self, level: Level, planned: Planned) -> None:
        act, tile, offset = planned
        place = level.places.get(tile)
        if (place is None) is not (act is Act.LOAD):
            raise self._fault(planned, place)
        if place is None:
            self._load(level, tile, offset)
        elif act is Act.LEAVE:
            if level.is_packed and place.index != offset:
                raise self._fault(planned, place)
            if level.states[tile] is DIRTY:
                self._write_back(level, tile)
            level.leave(tile, STORED)
            if level is self.top:
                self.changed.discard(tile)
        elif act is Act.SAVE:
            self._write_back(level, tile)
            level.states[tile] = CLEAN
            if level is self.top:
                self.changed.discard(tile)
        elif level.is_packed:
            level.written[tile] = self._add(Kind.COPY, tile, (level.put(tile, offset), place))

    def _write_back(self, level: Level, tile: Tile) -> None:
        here = level.places[tile]
        if level is self.top and self.ram is not None:
            self._touch()
            there = self.ram.places.get(tile) or self.ram.put(tile)
            level.saved[tile] = self.ram.written[tile] = self._add(Kind.DOWNLOAD, tile, (there, here))
            self.ram.states[tile] = DIRTY
            self._touched()
        else:
            assert self.disk is not None
            there = self.disk.places.get(tile) or self.disk.put(tile)
            level.saved[tile] = self._add(Kind.TRANSFER, tile, (there, here))

    def _load(self, level: Level, tile: Tile, offset: int) -> None:
        here = level.put(tile, offset)
        if self.is_over and tile in self.inputs:  # the host will write it there
            return
        if level is self.top and self.ram is not None:
            self._touch()
            level.written[tile] = self._add(Kind.UPLOAD, tile, (here, self._in_ram(tile)))
            level.states[tile] = CLEAN
            self._touched()
        else:
            assert self.disk is not None
            there = self.disk.places.get(tile) or self.disk.put(tile)
            level.written[tile] = self._add(Kind.TRANSFER, tile, (here, there))
            level.states[tile] = CLEAN

    def _in_ram(self, tile: Tile) -> Place:
        """Return the tile's place in RAM. RAM that holds everything first loads a tile that was left in the file."""
        assert self.ram is not None
        if tile not in self.ram.places and self.beneath is None:
            self._load(self.ram, tile, 0)
        return self.ram.places[tile]

    def _touch(self) -> None:
        """Emit the moves that are planned in RAM before its next use."""
        if self.beneath is not None:
            assert self.ram is not None
            self._move_all(self.ram, self.beneath.packing, self.touches)

    def _touched(self) -> None:
        """Count a use of RAM, and drop the tiles that are dead there behind it."""
        if self.beneath is None:
            return
        assert self.ram is not None
        for tile in self.beneath.dying[self.touches]:
            state = ABSENT if tile.persistent else None
            if tile.persistent and tile not in self.inputs and tile not in self.changed:  # it will be changed later
                if self.ram.states[tile] is CLEAN:
                    state = STORED
                else:
                    self.top.states[tile] = DIRTY  # there is no other copy
            self.ram.leave(tile, state)
        self.touches += 1

    def _give(self, tiles: Sequence[Tile]) -> None:
        """Let the host write new bytes into `tiles` at a mark, when all earlier entries are over."""
        if not tiles:
            return
        level = self.top
        if self.ram is not None:
            self._touch()
            level = self.ram
            for tile in tiles:
                self.top.leave(tile, STORED)
                self.top.saved.pop(tile, None)
            self.changed.difference_update(tiles)
        for tile in tiles:
            level.write(level.places[tile], NOBODY, set())
            level.states[tile] = DIRTY
            level.written.pop(tile, None)
        if self.ram is not None:
            self._touched()

    def _perform(self, entry: Entry) -> None:
        places = tuple(self.top.places[tile] for tile in entry.tiles)
        if isinstance(entry, Fetch):
            result = Place(RESULT, entry.tile.nbytes, self.fetches)
            self.fetches += 1
            self._add(Kind.FETCH, entry.tile, (result, *places))
            return
        assert isinstance(entry, Operation)
        written = [tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ]
        for tile in written:
            self._change(tile)
        number = self._add(Kind.OPERATION, entry, places, entry.access)
        for tile in written:
            self.top.states[tile] = DIRTY
            self.top.written[tile] = number

    def _change(self, tile: Tile) -> None:
        """Record that the top level is about to change the tile, so its bytes in RAM are dead."""
        is_new = tile not in self.changed
        self.changed.add(tile)
        if tile.persistent and is_new:
            self._touch()
            self._touched()

    def _perform_on_host(self, entry: Entry) -> None:
        assert self.ram is not None and isinstance(entry, Operation)
        self._touch()
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if how != WRITE:
                self._in_ram(tile)
        places = tuple(self.ram.places.get(tile) or self.ram.put(tile) for tile in entry.tiles)
        number = self._add(Kind.OPERATION, entry, places, entry.access)
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if how != READ:
                self.top.leave(tile, STORED)
                self.ram.states[tile] = DIRTY
                self.top.saved[tile] = self.ram.written[tile] = number
                self.changed.discard(tile)
        self._touched()

    def _bury(self, index: int) -> None:
        """Drop the tiles that are dead behind entry `index`: temporaries, and inputs that the host writes below."""
        program = self.program
        ranks = program.next_uses if self.ram is None else program.device_uses
        for tile, rank in zip(program.entries[index].tiles, ranks[index], strict=True):
            if is_dead(tile, rank):
                self.changed.discard(tile)
                for level in self.levels.values():
                    level.leave(tile, None)
            elif tile in self.packing.passing and has_passed(program, rank):
                self.changed.discard(tile)
                self.top.leave(tile, ABSENT)

    def _end(self) -> None:
        """Bring every tile to the seam."""
        self.is_over = True
        self._move_all(self.top, self.packing, len(self.program))
        for tile in self.packing.to_take(self.changed):
            self.top.states[tile] = DIRTY
            self._change(tile)
        self._touch()
        assert self.beneath is None or self.touches == len(self.beneath.dying), "RAM was planned for another step"
        if self.ram is not None and self.start is not None:
            self._end_in_ram(self.ram, self.seams[-1])
        if self.top.places.keys() != self.packing.seam.offsets.keys():
            raise AsynctileError(f"program {self.program.name} does not end at its seam; this is a bug in asynctile")
        lowest = self.top if self.ram is None else self.ram
        for tile in self.inputs:
            if lowest is not self.top:
                self.top.leave(tile, STORED)
            lowest.states[tile] = DIRTY if tile in lowest.places else STORED

    def _end_in_ram(self, ram: Level, seam: Seam) -> None:
        """Count tiles in RAM as dirty where the next step expects it. RAM that holds everything first gets what it lacks."""
        for tile in seam.offsets:
            if self.beneath is None and tile not in ram.places and self.top.states[tile] is DIRTY:
                ram.put(tile)  # the newest bytes are above
            elif self.beneath is None:
                self._in_ram(tile)
            if tile in seam.changed:
                ram.states[tile] = DIRTY

    def _stand(self) -> tuple[Standing, ...]:
        tiles = [*self.standing, *self.program.temporaries]
        return tuple(one for level in (self.top, self.ram) if level is not None for one in level.stand(tiles))

    def _add(self, kind: Kind, what: Operation | Tile, places: tuple[Place, ...], access: str = WRITE + READ) -> int:
        """Append an entry behind all entries that it must wait for; return its number."""
        number, waits, after = len(self.entries), set[int](), set[int]()
        for place, how in zip(places, access):  # noqa: B905  # an operation checks the lengths when it is made
            if how != WRITE:
                self.levels[place.tier].read(place, number, waits)
        for place, how in zip(places, access):  # noqa: B905
            if how != READ and place.tier != RESULT:
                self.levels[place.tier].write(place, number, after)
        waits.discard(number)
        after.discard(number)
        after -= waits
        self.entries.append(Scheduled(kind, what, places, tuple(sorted(waits)), tuple(sorted(after)), self.stretch))
        return number

    def _fault(self, planned: Planned, place: Place | None) -> AsynctileError:
        stands = "stands nowhere" if place is None else f"stands at {place.index}"
        return AsynctileError(f"program {self.program.name} was to {planned.act.name.lower()} tile {planned.tile.name} at byte "
                              f"{planned.offset}, but it {stands}; this is a bug in asynctile")
