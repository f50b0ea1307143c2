"""A rehearsal: a program runs on tiers without bytes until its moves are those of a steady state, and one step is written down.

The very coroutines of a job (asynctile/run) decide, on tiers that are cut like the real ones, so a schedule moves what a run
would. A device and a spill folder stand below them in which nothing happens: what they are asked for becomes an entry, and the
events that they return say what each entry must wait for. At the end of the step every tile is brought back to where the step
began. Who has slots, who leaves and when is decided elsewhere (storage/ledger.py, asynctile/schedule/cursor.py).

Where the top tier is packed (asynctile/schedule/packing.py) the plan says all that of it, and ends where it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from asynctile.device.dry import DrySpill
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.program.operation import DEVICE
from asynctile.program.operation import WRITE as OVERWRITE
from asynctile.program.program import Program
from asynctile.repeat.arrival import in_slots, send_away, take_as_changed
from asynctile.repeat.script import Boundless, DryTransfers, Noted, Script
from asynctile.run.assembly import Assembly
from asynctile.run.at_once import at_once
from asynctile.run.job import Job
from asynctile.schedule.packed import changed_at_start
from asynctile.schedule.packing import Packing
from asynctile.schedule.schedule import NOBODY, Place, Schedule, Scheduled, Standing, relative
from asynctile.storage.demand import Demand
from asynctile.storage.move import Move
from asynctile.storage.residency import ABSENT, LOSE, REPLACE, STALE, STORED, WRITE, Residency
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from asynctile.streams.stream import Stream

#: Runs before the one that is written down: it brings the tiles in. More of them change the bytes moved by less than a percent.
RUNS = 1


def rehearse(program: Program, demand: Demand, real: Tiers, packing: Packing | None = None) -> Schedule | None:
    """The schedule of `program` on tiers cut like `real`; None if the step cannot be brought back to its start.

    demand: what they were cut for. packing: by which the top tier is used, None for one in slots. Pure: a function of the
    program, of how the caps are cut, and of the packing. Takes about 50 us of Python for each operation and run, so it belongs
    in a thread.
    """
    rehearsal = Rehearsal(program, demand, real, packing)
    try:
        return rehearsal.schedule()
    finally:
        rehearsal.forget()


class Rehearsal:
    """One program on tiers of its own, which are shaped like `real`."""

    def __init__(self, program: Program, demand: Demand, real: Tiers, packing: Packing | None) -> None:
        self.program = program
        self.demand = demand
        self.packing = packing
        self.script = Script(real.device)
        options = TierOptions(prefetch=real.prefetch)
        spill = None if real.spill is None else DrySpill(None)
        transfers = None if spill is None else cast(Stream, DryTransfers(self.script, spill))
        self.tiers = Tiers(self.script, spill, transfers, options, Boundless(self.script.streams, None))
        for tier, model in zip(self.tiers.from_the_top(), real.from_the_top(), strict=True):
            wanted = real.caps.demand_on(model, demand)
            _cut_like(tier, model, wanted, is_packed=packing is not None and tier is self.tiers.top)
        self.tiers.host.copy = self.script.copy  # whoever plays the step brings tiles back to their slots there as well
        self.assembly = Assembly(self.tiers)
        if self.tiers.link is not None and self.tiers.host.arena.divided:
            self.assembly.lanes[DEVICE].on_use = self.tiers.link.used
        inputs = set(program.inputs.values())
        #: what is overwritten first need not be there
        self._standing = [tile for tile in program.first_uses if tile not in inputs and real.top.of(tile).state is not ABSENT]

    def schedule(self) -> Schedule | None:
        """Run it, and write the last run down."""
        self._take_blocks()
        if self.packing is None:
            self._put(self._standing)
        else:
            self._pack(self.packing)
        settled = self.packing is not None and not self.tiers.host.arena.divided
        for _ in range(0 if settled else RUNS):
            self._put_inputs()
            self._run({})
        return self._written_down() or (self._written_down() if settled else None)

    def _written_down(self) -> Schedule | None:
        """One run as a schedule; None if it does not end where it began."""
        self._put_inputs()
        self._drop_stale()
        entries: list[Scheduled] = []
        at: dict[str, tuple[Standing, ...]] = {}
        self.script.begin(entries)
        start = tuple(self._stand(self.tiers.positions.last + 1))
        stretches = self._run(at)
        self._end(start)
        end = tuple(self._stand(self.tiers.positions.last + 1))
        if not _same(start, end):
            return None
        peaks = tuple(tier.ledger.peak_nbytes for tier in self.tiers.from_the_top())
        marks = {name: stretch + 1 for stretch, name in enumerate(at)}
        return Schedule(self.program, tuple(entries), tuple(stretches), marks, start, at, end, peaks)

    def forget(self) -> None:
        """Its tiers are gone: no tile remembers them."""
        for tile in (*self.program.standing, *self.program.temporaries):
            for tier in self.tiers.from_the_top():
                tile.at.pop(tier.ledger, None)

    def _put(self, tiles: Iterable[Tile]) -> None:
        for tile in tiles:
            self.assembly.put_dry(tile)

    def _put_inputs(self) -> None:
        """As the host does before a run: in RAM, or where there is no place for them in the file."""
        top, packing = self.tiers.top, self.packing
        for tile in self.program.inputs.values():
            residency = top.of(tile)
            if packing is not None and self.tiers.link is None and residency.slot is None:
                if tile not in packing.start:
                    top.drop(residency, REPLACE)
                    continue
                top.ledger.expect(tile, packing.start[tile])
            self.assembly.put_dry(tile)

    def _pack(self, packing: Packing) -> None:
        """Tiles stand where the plan begins, as they do in the steady state."""
        top, over_link = self.tiers.top, self.tiers.link is not None
        for tile in self._standing:
            if over_link:
                self.assembly.put_dry(tile)
            else:
                top.drop(top.of(tile), REPLACE)  # as if it were in the file
        changed = changed_at_start(packing, over_link=over_link)
        for tile, offset in packing.start.items():
            residency = top.of(tile)
            if residency.state is STORED:
                top.load_at(residency, offset)
                if tile in changed:
                    top.ledger.change(residency, WRITE)
                    if self.tiers.link is not None and self.tiers.host.arena.divided:
                        self.tiers.link.used(residency, residency.next_use, True)
            elif tile not in self.program.inputs.values():  # nobody has made it yet
                top.ledger.expect(tile, offset)
                top.admit((residency,), OVERWRITE)

    def _run(self, at: dict[str, tuple[Standing, ...]]) -> list[int]:
        """One run, at whose marks the standing of all tiles is kept in `at`; the first entries of its stretches."""
        job = Job(self.assembly, self.program, self.demand, packing=self.packing)
        base, stretches = self.tiers.positions.last, [0]
        self.script.stretch = 0
        for name in sorted(self.program.marks, key=self.program.marks.__getitem__):
            at_once(job.until(name))
            # Before the mark: what makes room for it is over when the host writes it there.
            self._put(self.program.rewritten.get(name, ()))
            if self.script.entries is not None:
                at[name] = tuple(self._stand(base))
                stretches.append(len(self.script.entries))
                self.script.stretch += 1
        at_once(job.issue())
        job.end()
        return stretches

    def _stand(self, base: int) -> Iterator[Standing]:
        """Every tile of the program that has bytes, in every tier that knows of it."""
        for tile in (*self.program.standing, *self.program.temporaries):
            for number, tier in enumerate(self.tiers.from_the_top()):
                residency = tile.at.get(tier.ledger)
                if residency is None or (residency.state is ABSENT and not tile.persistent):
                    continue
                place = _place(residency.slot, number)
                written, saved = (_index(event) for event in (residency.written, residency.saved))
                next_use = relative(residency.next_use, base)
                yield Standing(tile, number, residency.state, place, next_use, residency.backing is not None, written, saved)

    def _take_blocks(self) -> None:
        """What stands has a place in the file for good: so those of temporaries are theirs alone."""
        link = self.tiers.host.link
        if link is not None:
            for tile in self.program.standing:
                self.tiers.host.of(tile).backing = link.take(self.tiers.host.of(tile))

    def _drop_stale(self) -> None:
        """Old copies in RAM leave: nobody will read them, and real tiers need not have the same ones."""
        for residency in list(self.tiers.host.ledger.resident):
            if residency.state is STALE:
                self.tiers.host.give_up(residency)

    def _end(self, start: Sequence[Standing]) -> None:
        """The step is over: bring every tile back to where it was."""
        inputs = list(self.program.inputs.values())
        wanted = [one for one in start if one.tile not in inputs]
        for number, tier in enumerate(self.tiers.from_the_top()):
            if tier.arena.divided or tier is not self.tiers.host:
                for tile in inputs:
                    tier.drop(tier.of(tile), LOSE)
            if tier.arena.divided and not tier.arena.packed:
                self._bring_back(number, in_slots(wanted, number))
        for number, tier in enumerate(self.tiers.from_the_top()):  # the host writes inputs anew, where it did before
            again = [(tier.of(one.tile), one) for one in start if one.tile in inputs and one.tier == number]
            free = _free_slots(tier, number, (one.place for _, one in again))
            tier.assume([(found, one.state, found.slot or free.get(one.place), one.next_use) for found, one in again])

    def _bring_back(self, number: int, wanted: Mapping[Tile, Standing]) -> None:
        """Into tier `number` what stood there when the step began, each where it was; all else leaves."""
        tier = self.tiers.from_the_top()[number]
        send_away(tier, wanted)
        pending = [one for tile, one in wanted.items() if _place(tier.of(tile).slot, number) != one.place]
        while pending:
            free = {_place(slot, number): slot for slot in tier.arena.free_slots()}
            left = []
            for one in pending:
                slot = free.pop(one.place, None)
                if slot is None:
                    left.append(one)
                else:
                    self._settle(tier, tier.of(one.tile), slot)
            if len(left) == len(pending):  # they stand in each other's slots
                self._step_aside(tier, next(tier.of(one.tile) for one in left if tier.of(one.tile).slot is not None))
            pending = left
        take_as_changed(self.tiers, tier, wanted)

    def _settle(self, tier: Tier, residency: Residency, slot: Slot) -> None:
        if residency.slot is None:
            tier.load_into(residency, slot)
        else:
            self._relocate(tier, residency, slot)

    def _step_aside(self, tier: Tier, residency: Residency) -> None:
        """Free the slot of a tile that stands where another belongs."""
        free = tier.arena.pool_for(residency.tile.nbytes).free_slots()
        if free:
            self._relocate(tier, residency, free[0])
        else:
            tier.give_up(residency)

    def _relocate(self, tier: Tier, residency: Residency, slot: Slot) -> None:
        """Copy a tile into another slot of its tier."""
        moves: list[Move] = []
        tier.ledger.relocate_into(residency, slot, moves)
        tier.carry_out(moves)


def _same(start: Sequence[Standing], end: Sequence[Standing]) -> bool:
    """Whether every tile is where it was."""
    before, now = ({(one.tile, one.tier): (one.state, one.place) for one in stands} for stands in (start, end))
    return before == now


def _cut_like(tier: Tier, model: Tier, demand: Demand, *, is_packed: bool) -> None:
    """The same pools, or as many bytes. Where nothing has to leave, the pools that the demand asks for."""
    arena, like = tier.arena, model.arena
    arena.alignment = like.alignment
    if not like.divided:
        arena.cut(demand)
        return
    arena.cap = like.cap
    if is_packed:
        tier.pack()
    else:
        arena.divide((pool.slot_nbytes, pool.limit or 0) for pool in like.pools)


def _free_slots(tier: Tier, number: int, places: Iterable[Place | None]) -> dict[Place | None, Slot]:
    """Those of tier `number` that are nobody's; where it is packed, what `places` are there."""
    if tier.arena.packed:
        return {place: tier.arena.range_at(place.index, place.nbytes) for place in places if place is not None}
    return {_place(slot, number): slot for slot in tier.arena.free_slots()}


def _place(slot: Slot | None, number: int) -> Place | None:
    """That of a slot in tier `number`."""
    return None if slot is None else Place(number, slot.nbytes, slot.index)


def _index(event: StreamEvent | None) -> int:
    return event.index if isinstance(event, Noted) and not event.done else NOBODY
