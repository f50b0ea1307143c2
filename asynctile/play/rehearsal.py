"""A rehearsal: a program runs on tiers without bytes until its moves are those of a steady state, and one step is written down.

The very coroutines of a job (asynctile/run) decide, on tiers that are cut like the real ones, so a schedule moves what a run
would. A device stands below them on which nothing happens: what it is asked for becomes an entry, and the events that it
returns say what each entry must wait for. At the end of the step every tile is brought back to where the step began. Who has
slots, who leaves and when is decided elsewhere (storage/ledger.py, asynctile/schedule/cursor.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asynctile.device.base import Device
from asynctile.device.dry import DONE, DryDevice, DryMemory
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import TierOptions, Tiers
from asynctile.play.arrival import in_slots, send_away, take_as_changed
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.run.assembly import Assembly
from asynctile.run.graphs import at_once
from asynctile.run.job import Job
from asynctile.schedule.schedule import NOBODY, RAM, TOP, Kind, Place, Schedule, Scheduled, Standing, relative
from asynctile.storage.arena import Pool, Slot
from asynctile.storage.demand import Demand
from asynctile.storage.residency import ABSENT, Residency
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents, unfinished
from asynctile.streams.run_ahead import RunAhead

#: Runs before the one that is written down: it brings the tiles in. More of them change the bytes moved by less than a percent.
RUNS = 1


class Noted(StreamEvent):
    """The event of an entry, which is never done: so whoever uses its tiles says that it waits for it. index: the entry's."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class Boundless(RunAhead):
    """Remembers nothing of what was enqueued: the host is never too far ahead of a device on which nothing happens."""

    def add(self, event: StreamEvent, nbytes: int = 0, *, beside: bool = False) -> None:
        pass


class PlaceMemory(DryMemory):
    """Memory whose arrays are places. tier: its number."""

    def __init__(self, tier: int) -> None:
        self._tier = tier

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        return Place(self._tier, slot.pool.slot_nbytes, slot.index)


class Script(DryDevice):
    """The device of a rehearsal. entries: what it was asked for since `begin`, None before. stretch: in which that is."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.name, device.has_link, device.grain)
        self._memory = PlaceMemory(TOP)
        self.host = PlaceMemory(RAM)
        self.entries: list[Scheduled] | None = None
        self.stretch = 0

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._memory.array(slot, shape, dtype)

    def launch(
        self, operation: Operation, arrays: Sequence[Any], number: Any, waits: StreamEvents, after: StreamEvents = ()
    ) -> StreamEvent:
        return self.write(Kind.OPERATION, operation, arrays, waits, after)

    launch_on_host = launch

    def upload(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        return self.write(Kind.UPLOAD, what, (target, source), waits, after)

    def download(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        return self.write(Kind.DOWNLOAD, what, (target, source), waits, after)

    def write(self, kind: Kind, what: Any, places: Sequence[Any], waits: StreamEvents, after: StreamEvents) -> StreamEvent:
        """Note an entry, if a step is being written down."""
        if self.entries is None:
            return DONE
        needed = sorted(_indices(waits))
        behind = sorted(_indices(after).difference(needed))
        self.entries.append(Scheduled(kind, what, tuple(places), tuple(needed), tuple(behind), self.stretch))
        return Noted(len(self.entries) - 1)


def rehearse(program: Program, demand: Demand, real: Tiers) -> Schedule | None:
    """The schedule of `program` on tiers cut like `real`; None if the step cannot be brought back to its start.

    demand: what they were cut for. Pure: a function of the program and of how the caps are cut. Takes about 50 us of Python for
    each operation and run, so it belongs in a thread.
    """
    rehearsal = Rehearsal(program, demand, real)
    try:
        return rehearsal.schedule()
    finally:
        rehearsal.forget()


class Rehearsal:
    """One program on tiers of its own, which are shaped like `real`."""

    def __init__(self, program: Program, demand: Demand, real: Tiers) -> None:
        self.program = program
        self.demand = demand
        self.script = Script(real.device)
        options = TierOptions(prefetch=real.prefetch)
        self.tiers = Tiers(self.script, None, None, options, Boundless(self.script.streams, None))
        for tier, model in zip(self.tiers.from_the_top(), real.from_the_top(), strict=True):
            _cut_like(tier, model, demand)
        self.assembly = Assembly(self.tiers)
        inputs = set(program.inputs.values())
        self._standing = [tile for tile in program.standing if tile not in inputs and real.top.of(tile).state is not ABSENT]

    def schedule(self) -> Schedule | None:
        """Run it, and write the last run down."""
        for tile in self._standing:
            self.assembly.put_dry(tile)
        for _ in range(RUNS):
            self._put(self.program.inputs.values())
            self._run({})
        self._put(self.program.inputs.values())
        entries: list[Scheduled] = []
        self.script.entries = entries
        at: dict[str, tuple[Standing, ...]] = {}
        start = tuple(self._stand(self.tiers.positions.last + 1))
        stretches = self._run(at)
        self._put(self.program.inputs.values())
        for number, tier in enumerate(self.tiers.from_the_top()):
            if tier.arena.divided:
                self._bring_back(tier, in_slots(start, number))
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

    def _run(self, at: dict[str, tuple[Standing, ...]]) -> list[int]:
        """One run, at whose marks the standing of all tiles is kept in `at`; the first entries of its stretches."""
        job = Job(self.assembly, self.program, self.demand)
        base, stretches = self.tiers.positions.last, [0]
        self.script.stretch = 0
        for name in sorted(self.program.marks, key=self.program.marks.__getitem__):
            at_once(job.until(name))
            if self.script.entries is not None:
                at[name] = tuple(self._stand(base))
                stretches.append(len(self.script.entries))
                self.script.stretch += 1
            self._put(self.program.rewritten.get(name, ()))
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
                place = None if residency.slot is None else Place(number, residency.slot.pool.slot_nbytes, residency.slot.index)
                written = residency.written.index if isinstance(residency.written, Noted) else NOBODY
                next_use = relative(residency.next_use, base)
                yield Standing(tile, number, residency.state, place, next_use, residency.backing is not None, written)

    def _bring_back(self, tier: Tier, wanted: Mapping[Tile, Standing]) -> None:
        """The step is over: bring into `tier` what stood there when it began, each where it was, and let all else leave."""
        send_away(tier, wanted)
        pending = [one for tile, one in wanted.items() if not _is_in(tier.of(tile), one.place)]
        while pending:
            free = {(slot.pool.slot_nbytes, slot.index): slot for slot in tier.arena.free_slots()}
            left = []
            for one in pending:
                assert one.place is not None
                slot = free.pop((one.place.nbytes, one.place.index), None)
                if slot is None:
                    left.append(one)
                else:
                    self._settle(tier, tier.of(one.tile), slot)
            if len(left) == len(pending):  # they stand in each other's slots
                self._step_aside(tier, tier.of(left[0].tile))
            pending = left
        take_as_changed(tier, wanted)

    def _settle(self, tier: Tier, residency: Residency, slot: Slot) -> None:
        if residency.slot is None:
            tier.load_into(residency, slot)
        else:
            self._relocate(tier, residency, slot)

    def _step_aside(self, tier: Tier, residency: Residency) -> None:
        """Free the slot of a tile that stands where another belongs."""
        assert residency.slot is not None
        free = [slot for slot in residency.slot.pool.free_slots() if slot is not residency.slot]
        if free:
            self._relocate(tier, residency, free[0])
        else:
            tier.give_up(residency)

    def _relocate(self, tier: Tier, residency: Residency, slot: Slot) -> None:
        """Copy a tile into another slot of its tier."""
        old, tile = residency.slot, residency.tile
        assert old is not None
        to = tier.memory.array(slot, tile.shape, tile.dtype)
        waits = unfinished(residency.written)
        event = self.script.write(Kind.COPY, tile, (to, residency.array), waits, unfinished(*slot.guard))
        slot.pool.claim(slot)
        slot.guard = ()
        old.guard = (*unfinished(*residency.reads), event)
        old.pool.give(old, evicted=True)
        residency.slot, residency.array, residency.written, residency.reads = slot, to, event, []


def _same(start: Sequence[Standing], end: Sequence[Standing]) -> bool:
    """Whether every tile is where it was."""
    before, now = ({(one.tile, one.tier): (one.state, one.place) for one in stands} for stands in (start, end))
    return before == now


def _cut_like(tier: Tier, model: Tier, demand: Demand) -> None:
    """The same pools. Where nothing has to leave, those that the demand asks for."""
    arena, like = tier.arena, model.arena
    arena.alignment = like.alignment
    if not like.divided:
        arena.cut(demand.rounded(arena.alignment))
        return
    arena.cap, arena.divided = like.cap, True
    arena.pools = [Pool(arena, pool.slot_nbytes, pool.limit) for pool in like.pools]


def _is_in(residency: Residency, place: Place | None) -> bool:
    slot = residency.slot
    return slot is not None and place is not None and (slot.pool.slot_nbytes, slot.index) == (place.nbytes, place.index)


def _indices(events: StreamEvents) -> set[int]:
    return {event.index for event in events if isinstance(event, Noted)}
