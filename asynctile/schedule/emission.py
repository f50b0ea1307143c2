"""Emission: the decisions of packings as one ordered list of entries, each with its places and the entries it waits for.

It follows the tiles of a program through the levels, and records where they stand at the marks of the step. Its only own
decision is which of several equal slots a tile takes, in a level that holds everything. Pure.

Long because a step is followed here through every kind of entry and every level, and each changes all others' states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from asynctile.program.operation import HOST, READ, WRITE, Operation, number_of
from asynctile.program.program import Entry, Fetch, Handover, Mark, Passage, Program, Shipment
from asynctile.schedule.below import Above
from asynctile.schedule.level import Level, Levels
from asynctile.schedule.packing import Act, Packing, Planned
from asynctile.schedule.schedule import NOBODY, RAM, RESULT, Kind, Place, Schedule, Scheduled, Standing, node_tier_of
from asynctile.schedule.start import Seam, Start
from asynctile.schedule.top import Top
from asynctile.schedule.uses import has_passed, is_dead, tiles_of
from asynctile.storage.errors import AsynctileError
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, STORED
from asynctile.storage.tile import Tile


class Beneath(NamedTuple):
    """The moves in RAM below a device. packing: over the uses of RAM. dying: by use, the tiles dead in RAM behind it."""

    packing: Packing
    dying: Sequence[Sequence[Tile]]


def emit(program: Program, levels: Callable[[], Levels], above: Sequence[Above], beneath: Beneath | None) -> Schedule:
    """Return the schedule of a step. levels: makes empty ones. above: of each device. beneath: of RAM, if packed."""
    first = _Emission(program, levels(), above, beneath)
    schedule = first.schedule()
    alone = frozenset[Alone]() if beneath is None else first.alone_above()
    return _Emission(program, levels(), above, beneath, alone=alone).schedule() if alone else schedule


def emit_from(
    start: Start, program: Program, levels: Levels, above: Sequence[Above], beneath: Beneath | None, seams: Sequence[Seam]
) -> Schedule:
    """Return the schedule of a step that begins at `start`, with packings of the same start, and ends at `seams`."""
    return _Emission(program, levels, above, beneath, start=start, seams=seams).schedule()


#: A device and a tile whose only copy is there at the start, though unchanged there.
Alone = tuple[int, Tile]


class _Emission:
    """One pass through a program. alone: see Alone. start, seams: of a step that ends elsewhere than it begins.

    is_over: the whole program was performed, and tiles return to where they stood. touches: how often RAM was used so far.
    """

    def __init__(
        self, program: Program, levels: Levels, above: Sequence[Above], beneath: Beneath | None, *,
        alone: Collection[Alone] = (), start: Start | None = None, seams: Sequence[Seam] = (),
    ) -> None:  # fmt: skip
        self.program = program
        self.alone = alone
        self.start = start
        self.seams = tuple(seams)
        self.beneath = beneath
        _, self.ram, self.disk = levels
        own = [tile for tile in tiles_of(self.program) if tile.persistent]
        there = [] if start is None else start.tiles()
        # The first device knows of every tile whether it has bytes anywhere.
        known = [[*own, *there], *[there] * (len(above) - 1)]
        self.tops = [Top(*one) for one in zip(levels.tops, above, known, strict=True)]
        self.lowest = self.tops[0].level if self.ram is None else self.ram
        self.levels = {level.number: level for level in (*levels.tops, self.ram, self.disk) if level is not None}
        self.inputs = set(self.program.inputs.values())
        self.standing = list(dict.fromkeys([*own, *there]))
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
            for top in self.tops:
                if (own := top.at(index)) is not None:
                    self._move_all(top.level, top.packing, own, top)
            if isinstance(entry, Mark):
                self._give(program.rewritten[entry.name])
                at[entry.name] = self._stand()
                stretches.append(len(self.entries))
                self.stretch += 1
            elif isinstance(entry, Passage):
                pass  # its device has brought the tiles to RAM
            elif entry.device == HOST and self.ram is not None:
                self._perform_on_host(entry)
            else:
                self._perform(entry)
                if index + 1 < len(program) and isinstance(passage := program.entries[index + 1], Passage):
                    self._outdate(passage)
            self._bury(index)
        self._end()
        marks = {name: stretch + 1 for stretch, name in enumerate(at)}
        peaks = tuple(level.peak_nbytes for level in self._tiers())
        return Schedule(
            program, tuple(self.entries), tuple(stretches), marks, start, at, self._stand(), self.seams, peaks,
            repeats=self.start is None,
        )  # fmt: skip

    def alone_above(self) -> frozenset[Alone]:
        """Return, at the end, the tiles whose only copy is on a device though it has not changed them."""
        return frozenset(
            (number, tile) for number, top in enumerate(self.tops) for tile in top.packing.start
            if top.level.states[tile] is DIRTY and tile not in top.changed
        )  # fmt: skip

    def _tiers(self) -> list[Level]:
        """Return the levels that are tiers, in the order of their numbers."""
        first, *others = [top.level for top in self.tops]
        return [level for level in (first, self.ram, *others) if level is not None]

    def _begin(self) -> None:
        """Place every tile where it stands when the step begins."""
        for number, top in enumerate(self.tops):
            for tile in top.standing:
                top.level.states[tile] = ABSENT if self._is_unwritten(tile) else STORED
            for tile, offset in top.packing.start.items():
                top.level.put(tile, offset)
                top.level.states[tile] = DIRTY if tile in top.changed or (number, tile) in self.alone else CLEAN
        if self.beneath is not None:
            self._begin_beneath(self.beneath)
        elif self.ram is not None:
            for tile in self._passing() if self.start is None else [one.tile for one in self.start.tiers[RAM]]:
                self.ram.put(tile)
                self.ram.states[tile] = DIRTY

    def _is_unwritten(self, tile: Tile) -> bool:
        return self.start is not None and tile in self.start.unwritten

    def _seams(self) -> Iterator[Seam]:
        """Yield the seam of each tier, in which the step begins."""
        first, *others = [
            top.packing.seam._replace(changed={tile for tile in top.level.places if top.level.states[tile] is DIRTY})
            for top in self.tops
        ]
        yield first
        if self.beneath is not None:
            yield self.beneath.packing.seam
        elif self.ram is not None:
            yield Seam(dict.fromkeys(self.ram.places, 0), frozenset(self.ram.places))
        yield from others

    def _begin_beneath(self, beneath: Beneath) -> None:
        assert self.ram is not None
        newer = {tile for top in self.tops for tile, state in top.level.states.items() if state in (DIRTY, ABSENT)}
        for tile in self.standing:
            self.ram.states[tile] = ABSENT if tile in newer else STORED
        for tile, offset in beneath.packing.start.items():
            self.ram.put(tile, offset)
            self.ram.states[tile] = DIRTY if tile in beneath.packing.changed or tile in self.inputs else CLEAN

    def _passing(self) -> Iterator[Tile]:
        """Yield the persistent tiles that are in RAM at some time of a step."""
        found = dict.fromkeys(self.program.inputs.values())
        for top in self.tops:
            found |= dict.fromkeys(planned.tile for planned in top.packing.planned() if planned.act is not Act.COPY)
        for entry in self.program.entries:
            if entry.device == HOST:
                found |= dict.fromkeys(entry.tiles)
        return (tile for tile in found if tile.persistent)

    def _move_all(self, level: Level, packing: Packing, index: int, top: Top | None) -> None:
        """Emit the moves that `packing` plans before its entry `index`, and place the tiles that the entry makes.

        top: the device of the level; None for RAM below devices.
        """
        for planned in packing.moves[index]:
            self._move(level, planned, top)
        for tile, offset in packing.births.get(index, ()):
            level.put(tile, offset)

    def _move(self, level: Level, planned: Planned, top: Top | None) -> None:
        act, tile, offset = planned
        place = level.places.get(tile)
        if (place is None) is not (act is Act.LOAD):
            raise self._fault(planned, place)
        if place is None:
            self._load(level, tile, offset, top)
        elif act is Act.LEAVE:
            if level.is_packed and place.index != offset:
                raise self._fault(planned, place)
            if level.states[tile] is DIRTY:
                self._write_back(level, tile)
            level.leave(tile, STORED)
            if top is not None:
                top.changed.discard(tile)
        elif act is Act.SAVE:
            self._write_back(level, tile)
            level.states[tile] = CLEAN
            if top is not None:
                top.changed.discard(tile)
        elif level.is_packed:
            level.written[tile] = self._add(Kind.COPY, tile, (level.put(tile, offset), place))

    def _write_back(self, level: Level, tile: Tile) -> None:
        here = level.places[tile]
        if level is not self.lowest and self.ram is not None:
            self._touch()
            there = self.ram.places.get(tile) or self.ram.put(tile)
            self.ram.written[tile] = number = self._add(Kind.DOWNLOAD, tile, (there, here))
            self.ram.states[tile] = DIRTY
            self._save(tile, number)
            self._touched()
        else:
            assert self.disk is not None
            there = self.disk.places.get(tile) or self.disk.put(tile)
            level.saved[tile] = self._add(Kind.TRANSFER, tile, (there, here))

    def _save(self, tile: Tile, entry: int) -> None:
        """Record that an entry has written the tile in RAM, where all devices find it."""
        for top in self.tops:
            if tile in top.tiles:
                top.level.saved[tile] = entry

    def _load(self, level: Level, tile: Tile, offset: int, top: Top | None) -> None:
        here = level.put(tile, offset)
        if self.is_over and tile in self.inputs:  # the host will write it there
            return
        if level is not self.lowest and self.ram is not None:
            self._touch()
            source = self._source(tile, here)
            if source is None:
                level.written[tile] = self._add(Kind.UPLOAD, tile, (here, self._in_ram(tile)))
            else:
                level.written[tile] = self._add(Kind.PASS, tile, (here, source.level.places[tile]))
            level.states[tile] = CLEAN
            self._touched(top)
        else:
            assert self.disk is not None
            there = self.disk.places.get(tile) or self.disk.put(tile)
            level.written[tile] = self._add(Kind.TRANSFER, tile, (here, there))
            level.states[tile] = CLEAN

    def _source(self, tile: Tile, here: Place) -> Top | None:
        """Return the device from which a tile comes to `here`: the one that has had it longest, so nobody waits for a chain.

        None if no other device has it.
        """
        holders = [top for top in self.tops if top.level.number != here.tier and top.has(tile)]
        return min(holders, key=lambda top: top.level.written.get(tile, NOBODY), default=None)

    def _in_ram(self, tile: Tile) -> Place:
        """Return the tile's place in RAM. RAM that holds everything first loads a tile that was left in the file."""
        assert self.ram is not None
        if tile not in self.ram.places and self.beneath is None:
            self._load(self.ram, tile, 0, None)
        return self.ram.places[tile]

    def _touch(self) -> None:
        """Emit the moves that are planned in RAM before its next use."""
        if self.beneath is not None:
            assert self.ram is not None
            self._move_all(self.ram, self.beneath.packing, self.touches, None)

    def _touched(self, top: Top | None = None) -> None:
        """Count a use of RAM, and drop the tiles that are dead there behind it. top: the device that loaded a tile."""
        if self.beneath is None:
            return
        assert self.ram is not None
        for tile in self.beneath.dying[self.touches]:
            state = ABSENT if tile.persistent else None
            is_changed = any(tile in one.changed for one in self.tops)
            if tile.persistent and tile not in self.inputs and not is_changed:  # it will be changed later
                if self.ram.states[tile] is CLEAN:
                    state = STORED
                else:
                    assert top is not None, "only a load is a use behind which the device has the only copy"
                    top.level.states[tile] = DIRTY
            self.ram.leave(tile, state)
        self.touches += 1

    def _give(self, tiles: Sequence[Tile]) -> None:
        """Let the host write new bytes into `tiles` at a mark, when all earlier entries are over."""
        if not tiles:
            return
        if self.ram is not None:
            self._touch()
            for top in self.tops:
                for tile in tiles:
                    top.lose(tile)
                    top.level.saved.pop(tile, None)
        for tile in tiles:
            self.lowest.write(self.lowest.places[tile], NOBODY, set())
            self.lowest.states[tile] = DIRTY
            self.lowest.written.pop(tile, None)
        if self.ram is not None:
            self._touched()

    def _perform(self, entry: Entry) -> None:
        top = self.tops[0 if entry.device == HOST else number_of(entry.device)]
        places = tuple(top.level.places[tile] for tile in entry.tiles)
        if isinstance(entry, Fetch):
            result = Place(RESULT, entry.tile.nbytes, self.fetches)
            self.fetches += 1
            self._add(Kind.FETCH, entry.tile, (result, *places))
            return
        written = [tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ]
        for tile in written:
            self._change(top, tile)
        if isinstance(entry, Handover):
            source = self.tops[number_of(entry.source)].level.places[entry.tile]
            number = self._add(Kind.PASS, entry.tile, (*places, source))
        else:
            number = self._add_work(entry, places)
        for tile in written:
            top.level.states[tile] = DIRTY
            top.level.written[tile] = number

    def _change(self, top: Top, tile: Tile) -> None:
        """Record that a device is about to change the tile, so its bytes in RAM are dead."""
        is_new = tile not in top.changed
        top.changed.add(tile)
        if tile.persistent and is_new:
            for other in self.tops:
                if other.level.states.get(tile) is ABSENT:
                    other.level.states[tile] = STORED  # its bytes are elsewhere
            self._touch()
            self._touched()

    def _outdate(self, passage: Passage) -> None:
        """Drop the copies of other devices, which are older from now on."""
        for number, top in enumerate(self.tops):
            if number != number_of(passage.device):
                for tile in passage.tiles:
                    top.lose(tile)

    def _perform_on_host(self, entry: Entry) -> None:
        assert self.ram is not None
        self._touch()
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if how != WRITE:
                self._in_ram(tile)
        places = tuple(self.ram.places.get(tile) or self.ram.put(tile) for tile in entry.tiles)
        number = self._add_work(entry, places)
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            if how != READ:
                self.ram.states[tile] = DIRTY
                self.ram.written[tile] = number
                for top in self.tops:
                    top.lose(tile)
                self._save(tile, number)
        self._touched()

    def _bury(self, index: int) -> None:
        """Drop the tiles that are dead behind entry `index`: temporaries, and inputs that the host writes below."""
        for top in self.tops:
            if (own := top.at(index)) is None:
                continue
            ranks = top.program.next_uses if self.ram is None else top.program.device_uses
            for tile, rank in zip(top.program.entries[own].tiles, ranks[own], strict=True):
                if is_dead(tile, rank):
                    top.changed.discard(tile)
                    top.level.leave(tile, None)
                elif tile in top.packing.passing and has_passed(top.program, rank):
                    top.changed.discard(tile)
                    top.level.leave(tile, ABSENT)
        for tile, rank in zip(self.program.entries[index].tiles, self.program.next_uses[index], strict=True):
            if is_dead(tile, rank):
                for level in (self.ram, self.disk):
                    if level is not None:
                        level.leave(tile, None)

    def _end(self) -> None:
        """Bring every tile to the seam."""
        self.is_over = True
        for top in self.tops:
            self._move_all(top.level, top.packing, len(top.program), top)
        for top in self.tops:
            for tile in top.packing.to_take(top.changed):
                top.level.states[tile] = DIRTY
                self._change(top, tile)
        self._touch()
        assert self.beneath is None or self.touches == len(self.beneath.dying), "RAM was planned for another step"
        if self.ram is not None and self.start is not None:
            self._end_in_ram(self.ram, self.seams[RAM])
        if any(top.level.places.keys() != top.packing.seam.offsets.keys() for top in self.tops):
            raise AsynctileError(f"program {self.program.name} does not end at its seam; this is a bug in asynctile")
        for tile in self.inputs:
            for top in self.tops:
                if self.ram is not None and tile in top.tiles:
                    top.level.leave(tile, STORED)
            self.lowest.states[tile] = DIRTY if tile in self.lowest.places else STORED

    def _end_in_ram(self, ram: Level, seam: Seam) -> None:
        """Count tiles in RAM as dirty where the next step expects it. RAM that holds everything first gets what it lacks."""
        for tile in seam.offsets:
            is_newer_above = any(top.level.states.get(tile) is DIRTY for top in self.tops)
            if self.beneath is None and tile not in ram.places and is_newer_above:
                ram.put(tile)
            elif self.beneath is None:
                self._in_ram(tile)
            if tile in seam.changed:
                ram.states[tile] = DIRTY

    def _stand(self) -> tuple[Standing, ...]:
        found: list[Standing] = []
        for top in self.tops:
            found += top.level.stand([*top.standing, *top.program.temporaries])
        if self.ram is not None:
            found += self.ram.stand([*self.standing, *self.program.temporaries])
        return tuple(found)

    def _add_work(self, entry: Entry, places: tuple[Place, ...]) -> int:
        """Append an operation, or a tile's way to or from another node; return the number of the entry."""
        if isinstance(entry, Shipment):
            there = Place(node_tier_of(entry.node), entry.tile.nbytes, entry.index)
            return self._add(Kind.TRANSFER, entry.tile, (there, *places) if entry.access == READ else (*places, there))
        assert isinstance(entry, Operation)
        return self._add(Kind.OPERATION, entry, places, entry.access)

    def _add(self, kind: Kind, what: Operation | Tile, places: tuple[Place, ...], access: str = WRITE + READ) -> int:
        """Append an entry behind all entries that it must wait for; return its number."""
        number, waits, after = len(self.entries), set[int](), set[int]()
        for place, how in zip(places, access):  # noqa: B905  # an operation checks the lengths when it is made
            if how != WRITE and place.tier in self.levels:
                self.levels[place.tier].read(place, number, waits)
        for place, how in zip(places, access):  # noqa: B905
            if how != READ and place.tier in self.levels:
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
