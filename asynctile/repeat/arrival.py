"""How tiles come to where a schedule begins, and where they stand once it was left: the tiers before and after playing.

While a schedule is played the ledgers say nothing: it ends each step where the ledgers left off. Only who leaves in the middle
of one, at a mark, has to tell them. Which slot is which place is bound.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import numpy as np

from asynctile.errors import AsynctileError
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import Tiers
from asynctile.program.operation import READ
from asynctile.program.operation import WRITE as OVERWRITE
from asynctile.program.program import Program
from asynctile.run.assembly import Assembly
from asynctile.schedule.schedule import NOBODY, TOP, Place, Standing
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, LOSE, REPLACE, WRITE, Residency
from asynctile.storage.slot import Slot
from asynctile.storage.tile import NEVER, Tile
from asynctile.streams.event import StreamEvent

#: The slot of each place.
Slots = Mapping[Place, Slot]


def in_slots(stands: Iterable[Standing], number: int) -> dict[Tile, Standing]:
    """Those that have a slot in tier `number`."""
    return {one.tile: one for one in stands if one.tier == number and one.place is not None}


async def fill(assembly: Assembly, program: Program, inputs: Mapping[str, np.ndarray], start: Iterable[Standing]) -> None:
    """Put the inputs of a program in RAM; where that is packed they have no bytes yet, but are expected as in `start`."""
    tiers, stands = assembly.tiers, {one.tile: one for one in start if one.place is not None}
    for name, tile in program.inputs.items():
        if tiers.host.arena.packed:
            _expect(tiers.host, tile, stands)
        else:
            await assembly.put(tile, inputs[name])


def _expect(host: Tier, tile: Tile, stands: Container[Tile]) -> None:
    """The host will write an input in RAM, or below it."""
    host.drop(host.of(tile), LOSE if tile in stands else REPLACE)


async def arrange(
    tiers: Tiers, program: Program, start: Sequence[Standing], unwritten: Collection[Tile]
) -> BaseException | None:
    """Bring the tiles of `program` to where `start` has them: in whichever slot, or to its place in a tier that is packed; but
    those that nobody has written need only have a place there. Returns the error of a move that failed.

    At most one cap of bytes a tier and way. What else stands in a tier that is divided leaves. Until all moves have gone well,
    nothing is known here that was not so before.
    """
    for number, tier in enumerate(tiers.from_the_top()):
        wanted = in_slots(start, number)
        if tier is not tiers.top and tier.arena.divided:  # what comes through RAM to the device has come
            for tile in program.inputs.values():
                _expect(tier, tile, wanted)
            await tiers.caps.pack_ram()
        _send_away(tier, wanted, {one.tile for one in start if one.tier == number and one.place is None})
        for one in wanted.values():
            _bring(tier, one)
        await tiers.run_ahead.settle()
    error = _error_of(tiers, start)
    if error is None:
        for number, tier in enumerate(tiers.from_the_top()):
            _take_as_changed(tiers, tier, in_slots(start, number))
        _check(tiers, program, [one for one in start if one.tile not in unwritten])
    return error


def _send_away(tier: Tier, wanted: Mapping[Tile, Standing], elsewhere: Container[Tile]) -> None:
    """Let all leave that should be as below and are not, or stand in the place of others, or are wanted `elsewhere`; and where
    the tier does not hold everything, those that are not wanted.
    """
    for residency in list(tier.ledger.resident):
        one = wanted.get(residency.tile)
        if one is None:
            leaves = tier.arena.divided or residency.tile in elsewhere
        else:
            leaves = (one.state is CLEAN and residency.state is DIRTY) or not _is_in_place(tier, residency, one)
        if leaves:
            tier.give_up(residency)


def _is_in_place(tier: Tier, residency: Residency, one: Standing) -> bool:
    """Whether it stands where it is to stand, as far as that matters: one slot of a pool is as good as another."""
    assert residency.slot is not None and one.place is not None
    return not tier.arena.packed or residency.slot.offset == one.place.index


def _bring(tier: Tier, one: Standing) -> None:
    residency = tier.of(one.tile)
    assert one.place is not None
    if residency.slot is not None:
        return
    if tier.arena.packed and residency.state is not ABSENT:
        tier.load_at(residency, one.place.index)
        return
    if tier.arena.packed:
        tier.ledger.expect(one.tile, one.place.index)
    tier.admit((residency,), OVERWRITE if residency.state is ABSENT else READ)


def _take_as_changed(tiers: Tiers, tier: Tier, wanted: Mapping[Tile, Standing]) -> None:
    """What a schedule writes back counts as changed, also if it has come from below just now."""
    for tile, one in wanted.items():
        residency = tier.of(tile)
        if one.state is DIRTY and residency.state is CLEAN:
            tier.ledger.change(residency, WRITE)
            if tier.link is tiers.link is not None and tiers.host.arena.divided:
                tiers.link.used(residency, residency.next_use, True)


def _error_of(tiers: Tiers, start: Iterable[Standing]) -> BaseException | None:
    """Of what wrote the tiles here, and below; None if all has gone well."""
    found = [tiers.from_the_top()[one.tier].of(one.tile) for one in start]
    events = (event for residency in found for event in (residency.written, residency.saved) if event is not None)
    return next((event.error for event in events if event.error is not None), None)


def _check(tiers: Tiers, program: Program, start: Iterable[Standing]) -> None:
    """AsynctileError unless every tile is where it is expected, and as it is."""
    for one in start:
        residency = tiers.from_the_top()[one.tier].of(one.tile)
        if residency.state is not one.state or (residency.slot is None) is not (one.place is None):
            raise AsynctileError(f"{residency.name} was to be {one.state} in tier {one.tier} before {program.name}, and is "
                                 f"{residency.state}; this is a fault of asynctile")


def stand(tiers: Tiers, stands: Iterable[Standing], slots: Slots, failure: Callable[[int], BaseException | None]) -> None:
    """Tell the tiers that tiles stand as in `stands`; nothing may be in flight. failure: of an entry, None if it went well."""
    found = list(stands)
    in_ram = {one.tile for one in found if one.tier != TOP}
    for number, tier in enumerate(tiers.from_the_top()):
        here = [one for one in found if one.tier == number]
        tier.assume([
            (tier.of(one.tile), one.state, None if one.place is None else slots[one.place], NEVER)
            for one in here
        ])  # fmt: skip
        for one in here:
            residency = tier.of(one.tile)
            if number == TOP and tiers.link is not None and residency.backing is None and one.tile in in_ram:
                residency.backing = tiers.link.take(residency)
            residency.written = _failed(failure, one.written)
            residency.saved = _failed(failure, one.saved)


def _failed(failure: Callable[[int], BaseException | None], entry: int) -> StreamEvent | None:
    """The event of an entry that did not go well."""
    error = None if entry == NOBODY else failure(entry)
    if error is None:
        return None
    event = StreamEvent()
    event.done, event.error = True, error
    return event
