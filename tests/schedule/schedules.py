"""The law of all schedules: in any order that its edges allow, each entry finds the bytes that program order means.

A step runs on memories that hold versions of tiles in place of bytes. Entries run in random orders, several steps in a row. The
host writes inputs before a step and at marks; all earlier work is over then. spaces.py draws random spaces.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from asynctile.program.operation import READ, Operation
from asynctile.program.program import Fetch, Mark
from asynctile.schedule.decide import Cut, Space
from asynctile.schedule.schedule import DISK, NOBODY, RAM, RESULT, TOP, Kind, Place, Schedule, Scheduled, Standing
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, STORED, State
from asynctile.storage.tile import Tile
from tests.schedule.versions import GARBAGE, Means, Memory, access

#: Steps in a row.
STEPS = 3
#: The place where a step rests besides its marks: after its last entry.
END = "end"


class Run:
    """Several steps of a schedule in a row. rests: all work is over at every mark, not only where the host writes.

    dropped: (earlier, later), an edge that is ignored: `later` runs as early as possible, `earlier` as late as possible.
    """

    def __init__(
        self, schedule: Schedule, space: Space, chance: random.Random, *, rests: bool, dropped: tuple[int, int] | None = None
    ) -> None:
        self.schedule = schedule
        self.space = space
        self.chance = chance
        self.rests = rests
        self.dropped = dropped
        self.memory = Memory(schedule, space)
        self.means = Means(schedule)
        self.inputs = set(schedule.program.inputs.values())
        self.lowest = TOP if space.ram is None else RAM
        self.steps = STEPS if schedule.repeats else 1
        self.given: dict[Place, int] = {}
        self.given_to: dict[Tile, int] = {}
        self.stored = blocks(schedule)
        self.soon = set[int]() if dropped is None else {dropped[1], *before(schedule, dropped[1], dropped)}

    def run(self) -> None:
        """Raise AssertionError if an entry does not find the bytes that it must read, or if a standing is not true."""
        self._begin()
        schedule, ends = self.schedule, [*self.schedule.stretches[1:], len(self.schedule)]
        names = [*sorted(schedule.marks, key=schedule.marks.__getitem__), END]
        for _ in range(self.steps):
            self._give_inputs()
            self.given.clear()
            self.given_to.clear()
            begun = 0
            for name, end in zip(names, ends, strict=True):
                rewritten = schedule.program.rewritten.get(name, ())
                if not (self.rests or rewritten or name == END):
                    continue
                self._perform(range(begun, end))
                begun = end
                self._give(schedule.at.get(name, ()), rewritten, end)
                stands = schedule.end if name == END else schedule.at[name]
                self._look(name, stands, end)

    def _begin(self) -> None:
        """Give persistent tiles their bytes where the step begins, and nowhere else."""
        for one in self.schedule.start:
            known = one.tile in self.inputs or one.tile in self.means.newest
            if one.tier != RAM and not known and one.state is not ABSENT:
                self.means.make(one.tile)
        self._fill(self.schedule.start)

    def _fill(self, stands: Sequence[Standing]) -> None:
        above = {one.tile for one in stands if one.tier != RAM and one.state in (DIRTY, ABSENT)}
        in_lowest = {one.tile for one in stands if one.tier == self.lowest}
        for one in stands:
            if one.tile in self.inputs or one.state is ABSENT or (one.tier == RAM and one.tile in above):
                continue
            version = self.means.newest[one.tile]
            if one.place is not None:
                self.memory.write(one.place, version)
            if one.state in (CLEAN, STORED) and (one.tier == self.lowest or one.tile not in in_lowest):
                for place in self.stored.get(one.tile, ())[:1]:
                    self.memory.write(place, version)

    def _give_inputs(self) -> None:
        stands = {one.tile: one.place for one in self.schedule.start if one.tier == self.lowest}
        below = set(self.schedule.inputs_below())
        for tile in self.inputs:
            self.means.make(tile)
            place = stands.get(tile)
            if place is None:
                blocks = self.stored.get(tile, ())  # none: then it is given other bytes before somebody reads it
                assert (tile in below) is bool(blocks), f"the host does not know where to write {tile.name}"
                for block in blocks[:1]:
                    self.memory.write(block, self.means.newest[tile])
            else:
                self.memory.write(place, self.means.newest[tile])

    def _give(self, stands: Sequence[Standing], tiles: Collection[Tile], end: int) -> None:
        places = {one.tile: one.place for one in stands if one.tier == self.lowest}
        for tile in tiles:
            self.means.make(tile)
            place = places.get(tile)
            assert place is not None, f"the host does not know where to write {tile.name} at a mark"
            self.memory.write(place, self.means.newest[tile])
            self.given[place] = self.given_to[tile] = end

    def _perform(self, entries: range) -> None:
        schedule = self.schedule.entries
        touches = {index: self.means.touches(schedule[index]) for index in entries}
        for index in order(schedule, entries, self.chance, self.dropped, self.soon):
            reads, writes = touches[index]
            for place, tile, version in reads:
                assert self.memory.holds(place, version), f"entry {index}, {schedule[index]}, does not find {tile.name}"
            for place, _, version in writes:
                self.memory.write(place, version)

    def _look(self, name: str, stands: Sequence[Standing], end: int) -> None:
        """Check that each standing is true, and that no bytes of persistent tiles are lost."""
        newest = {one.tile: one.tier for one in stands if one.tier != RAM and one.state is DIRTY}
        whole = set()
        for one in stands:
            if name == END and one.tile in self.inputs:
                continue  # the host writes them before the next step
            is_above = one.tile in newest and newest[one.tile] != one.tier
            if is_above and one.tier != RAM:
                what = f"at {name} {one.tile.name} is {one.state} in tier {one.tier}, and newer in {newest[one.tile]}"
                assert one.state is not DIRTY or not one.tile.persistent, what  # a temporary that was handed over
                assert one.place is None or self.memory.holds(one.place, self.means.newest[one.tile]), what
                continue
            if is_above and (self.space.ram is None or self.space.ram.cap is None):
                continue  # it holds everything, and older bytes too
            if self._is_true(one, is_above, name, end):
                whole.add(one.tile)
        lost = {tile for tile in self.means.newest if tile.persistent and tile not in self.inputs} - whole
        assert not lost, f"at {name} nobody has the newest bytes of {', '.join(tile.name for tile in lost)}"

    def _is_true(self, one: Standing, is_above: bool, name: str, end: int) -> bool:
        """Return whether the newest bytes of the standing's tile are there."""
        what, version = f"at {name} {one.tile.name} in tier {one.tier} {one.state}", self.means.newest.get(one.tile, GARBAGE)
        assert (one.place is not None) == (one.state in (CLEAN, DIRTY)), f"{what} has place {one.place}"
        may_be_absent = is_above or one.tile in self.inputs or one.tile not in self.means.newest
        assert one.state is not ABSENT or may_be_absent, what
        if one.state is ABSENT:
            return False
        # Below the device that has saved a temporary, it is as new as on the device to which it was handed over.
        assert not (is_above and one.tile.persistent), f"{what}, and newer above"
        if one.place is not None:
            assert self.memory.holds(one.place, version), f"{what} is older, or something else"
            assert one.written == self._last(one.place, end), f"{what}: written by {one.written}"
        if one.state is not DIRTY:
            assert one.saved == self._saved(one, end), f"{what}: saved by {one.saved}"
        if one.state is not DIRTY and one.tier == self.lowest:
            block = self._block(one.tile, end)
            assert block is None or self.memory.holds(block, version), f"{what}, but its block is older"
        return True

    def _last(self, place: Place, end: int) -> int:
        """Return the last entry before `end` that wrote there, NOBODY if that was the host or another step."""
        found = NOBODY
        for index in range(self.given.get(place, 0), end):
            entry = self.schedule.entries[index]
            for there, how in zip(entry.places, access(entry), strict=True):
                if there == place and how != READ:
                    found = index
        return found

    def _saved(self, one: Standing, end: int) -> int:
        """Return the entry before `end` that made the bytes below, NOBODY if that was the host or another step."""
        below, found = DISK if one.tier == self.lowest else RAM, NOBODY
        for index in range(self.given_to.get(one.tile, 0), end):
            entry = self.schedule.entries[index]
            operands = (entry.what,) * 2 if isinstance(entry.what, Tile) else entry.what.operands
            for tile, place, how in zip(operands, entry.places, access(entry), strict=True):
                is_from_above = isinstance(entry.what, Operation) or entry.places[1].tier not in (below, DISK)
                if tile is one.tile and place.tier == below and how != READ and is_from_above:
                    found = index
        return found

    def _block(self, tile: Tile, end: int) -> Place | None:
        """Return the block of a tile in the file, as of `end`."""
        entries = self.schedule.entries[:end] if not tile.persistent else self.schedule.entries
        found = [place for entry in entries if entry.what is tile for place in entry.places if place.tier == DISK]
        return found[-1] if found else None


def blocks(schedule: Schedule) -> dict[Tile, list[Place]]:
    """Return the blocks of each tile in the file, in order."""
    found: dict[Tile, list[Place]] = defaultdict(list)
    for entry in schedule.entries:
        if isinstance(entry.what, Tile):
            found[entry.what] += (place for place in entry.places if place.tier == DISK)
    return found


def before(schedule: Schedule, index: int, dropped: tuple[int, int] | None = None) -> set[int]:
    """Return the entries that are over when `index` begins, whatever the order."""
    found, pending = set[int](), [index]
    while pending:
        later = pending.pop()
        entry = schedule.entries[later]
        for one in (*entry.waits, *entry.after):
            if one not in found and (one, later) != dropped:
                found.add(one)
                pending.append(one)
    return found


def order(
    entries: Sequence[Scheduled], wanted: range, chance: random.Random, dropped: tuple[int, int] | None, soon: Collection[int]
) -> Iterator[int]:
    """Return `wanted` in an order that the edges allow. Each entry is randomly early or late, and stays so."""
    later: dict[int, list[int]] = defaultdict(list)
    left: dict[int, int] = {}
    for index in wanted:
        edges = {one for one in (*entries[index].waits, *entries[index].after) if one in wanted and (one, index) != dropped}
        left[index] = len(edges)
        for one in edges:
            later[one].append(index)
    turns = {index: chance.random() - (index in soon) for index in wanted}
    if dropped is not None and dropped[0] in turns:
        turns[dropped[0]] = 2.0
    ready = [(turns[index], index) for index in wanted if not left[index]]
    heapify(ready)
    count = 0
    while ready:
        _, index = heappop(ready)
        count += 1
        yield index
        for one in later[index]:
            left[one] -= 1
            if not left[one]:
                heappush(ready, (turns[one], one))
    assert count == len(wanted), "entries wait for each other"


def check(schedule: Schedule, space: Space, chance: random.Random) -> None:
    """Raise AssertionError for a schedule in which some step would not find its bytes."""
    _check_program_order(schedule)
    _check_ends(schedule)
    _check_peaks(schedule, space)
    for rests in (False, True):
        Run(schedule, space, chance, rests=rests).run()


def check_arrival(schedule: Schedule, steady: Schedule, space: Space, chance: random.Random) -> None:
    """Raise AssertionError for a schedule in which some step would not find its bytes, or that `steady` could not follow."""
    _check_program_order(schedule)
    _check_peaks(schedule, space)
    assert not schedule.repeats and steady.repeats
    cuts, end, seam = _cuts(schedule, space), _where(schedule.end), _where(steady.start)
    for (tile, tier), (state, place) in seam.items():
        found, there = end[tile, tier]
        is_packed = cuts[tier].cap is not None
        assert found is state, f"{tile.name} is {found} in tier {tier} behind an arrival, not {state}"
        same = there == place if is_packed else (there is None) is (place is None)
        assert same, f"{tile.name} stands at {there}, not {place}"
    for (tile, tier), (_, place) in end.items():
        assert (tile, tier) in seam or place is None or cuts[tier].cap is None, f"{tile.name} is left behind at {place}"
    for rests in (False, True):
        Run(schedule, space, chance, rests=rests).run()


def _check_program_order(schedule: Schedule) -> None:
    """Check that operations and fetches have program order within their stretches, and that edges lead back."""
    stretch, expected = 0, []
    for entry in schedule.program.entries:
        if isinstance(entry, Mark):
            stretch += 1
            assert schedule.marks[entry.name] == stretch
        elif isinstance(entry, Operation | Fetch):
            expected.append((entry if isinstance(entry, Operation) else entry.tile, stretch))
    done = [entry for entry in schedule.entries if entry.kind in (Kind.OPERATION, Kind.FETCH)]
    assert [(entry.what, entry.stretch) for entry in done] == expected
    stretches = [entry.stretch for entry in schedule.entries]
    assert list(schedule.stretches) == [bisect_left(stretches, one) for one in range(stretch + 1)] and stretches == sorted(
        stretches
    )
    for index, entry in enumerate(schedule.entries):
        assert all(0 <= one < index for one in (*entry.waits, *entry.after)), f"entry {index}: {entry}"
        assert not set(entry.waits) & set(entry.after), f"entry {index}: {entry}"
    results = [entry.places[0] for entry in schedule.entries if entry.kind is Kind.FETCH]
    assert results == [Place(RESULT, fetch.tile.nbytes, number) for number, fetch in enumerate(schedule.program.fetches)]


def _check_ends(schedule: Schedule) -> None:
    """Check that a step ends where it began."""
    start, end = _where(schedule.start), _where(schedule.end)
    differ = [key for key in start.keys() | end.keys() if start.get(key) != end.get(key)]
    assert not differ, f"a step ends elsewhere than it began: {[(start.get(key), end.get(key)) for key in differ]}"
    assert all(one.written == one.saved == NOBODY for one in schedule.start)
    assert all(tile.persistent for tile, _ in start), "a temporary stands between two steps"


def _where(stands: Sequence[Standing]) -> Mapping[tuple[Tile, int], tuple[State, Place | None]]:
    found = {(one.tile, one.tier): (one.state, one.place) for one in stands}
    assert len(found) == len(stands), "a tile stands twice in a tier"
    return found


def _cuts(schedule: Schedule, space: Space) -> list[Cut]:
    """Return the cut of each tier, by number."""
    return [space.top] if space.ram is None else [space.top, space.ram, *[space.top] * (schedule.program.devices - 1)]


def _check_peaks(schedule: Schedule, space: Space) -> None:
    """Check that the tiles at each mark are within the peaks, and the peaks within the caps."""
    cuts = _cuts(schedule, space)
    for tier, (cut, peak) in enumerate(zip(cuts, schedule.peaks, strict=True)):
        assert peak <= (peak if cut.cap is None else cut.cap)
        for stands in (schedule.start, *schedule.at.values(), schedule.end):
            assert sum(one.place.nbytes for one in stands if one.tier == tier and one.place is not None) <= peak
