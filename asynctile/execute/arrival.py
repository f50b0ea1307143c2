"""The tiers before and after a schedule runs: where its run begins, and what the ledgers are told when it has ended.

No byte moves here. A schedule begins where the tiles stand (asynctile/schedule/start.py), whoever has left them there. While it
runs, the ledgers are not kept. When it ends or is left in the middle, at a mark, they are told where the tiles stand. bound.py
says which slot is which place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import zip_longest

import numpy as np

from asynctile.launch.assembly import Assembly
from asynctile.memory.tier import Tier
from asynctile.memory.tiers import Tiers
from asynctile.program.operation import READ, WRITE
from asynctile.program.program import Program
from asynctile.program.view import views_of
from asynctile.schedule.schedule import NOBODY, RAM, Place, Schedule, Standing
from asynctile.schedule.start import IN_SLOT, Stands, Start
from asynctile.schedule.uses import tiles_of
from asynctile.storage.residency import ABSENT, DIRTY, Residency
from asynctile.storage.slot import Slot
from asynctile.storage.tile import NEVER, Tile
from asynctile.streams.event import StreamEvent, failed

#: Slot of each place.
Slots = Mapping[Place, Slot]


def in_slots(stands: Iterable[Standing], number: int) -> dict[Tile, Standing]:
    """Return the standings that have a slot in tier `number`, by tile."""
    return {one.tile: one for one in stands if one.tier == number and one.place is not None}


async def fill(assembly: Assembly, program: Program, inputs: Mapping[str, np.ndarray]) -> None:
    """Put the inputs of a program in RAM, unless RAM is packed: then the schedule has a place for them, here or below."""
    if not assembly.tiers.host.arena.packed:
        for name, tile in program.inputs.items():
            await assembly.put(tile, inputs[name])


def make_room(tiers: Tiers, schedule: Schedule) -> None:
    """Give each tile of the schedule that has no bytes in a tier with slots its slot there: the program will write them."""
    unwritten = {one.tile for one in schedule.start if not tiers.copies.is_written(one.tile)}
    for number, tier in enumerate(tiers.from_the_top()):
        if not tier.arena.packed:
            wanted = [tier.of(tile) for tile in in_slots(schedule.start, number) if tile in unwritten or tier is tiers.host]
            for residency in wanted:
                if residency.slot is None and residency.state is ABSENT:
                    tier.admit((residency,), WRITE)


def leave_clean(tiers: Tiers, schedule: Schedule) -> None:
    """Free the slots of clean tiles that stand where the schedule begins without them."""
    for one in schedule.start:
        tier = tiers.from_the_top()[one.tier]
        residency = tier.of(one.tile)
        if one.place is None and residency.slot is not None:
            tier.give_up(residency)


def can_begin(schedule: Schedule, start: Start) -> bool:
    """Return whether a schedule can begin at `start`: all its tiles stand in place, and none is newer than expected.

    More of the program's tiles may stand there if they are clean, so that they can leave without a copy.
    """
    given, own = set(schedule.program.inputs.values()), set(schedule.program.standing)
    known = {(one.tier, one.tile) for one in schedule.start}
    wanted = {(one.tier, one.tile): one for one in schedule.start if one.place is not None and one.tile not in given}
    for tier, stands in enumerate(start.tiers):
        for tile, offset, changed in stands:
            one = wanted.pop((tier, tile), None)
            if tile in given:
                continue
            if one is None or one.place is None:
                if changed or tile not in own or (tier != RAM and (tier, tile) not in known):
                    return False
            elif offset not in (IN_SLOT, one.place.index) or (changed and one.state is not DIRTY):
                return False
    return not wanted and not start.unwritten


def start_of(tiers: Tiers, program: Program) -> Start:
    """Return where a run of `program` would begin. Nothing may be in flight."""
    own = [tile for tile in tiles_of(program) if tile.persistent]
    found = {top: _standing(top, own) for top in tiers.tops}
    if tiers.link is not None:
        above = (one.tile for stands in found.values() for one in stands)
        found[tiers.host] = _standing(tiers.host, dict.fromkeys((*own, *above)))
    stood = {one.tile for stands in found.values() for one in stands}
    stood.update(program.inputs.values())
    unwritten = {tile for tile in own if tile not in stood and not tiers.copies.is_written(tile)}
    return Start(
        tuple(tuple(_stands(tier, one, in_ram=tier not in tiers.tops) for one in found[tier]) for tier in tiers.from_the_top()),
        frozenset(unwritten),
    )


def _standing(tier: Tier, tiles: Iterable[Tile]) -> list[Residency]:
    """Return the residencies in a tier: all of them if it is packed, by address, else those of `tiles`."""
    if tier.arena.packed:
        return sorted(tier.ledger.resident, key=_offset_of)
    return [residency for residency in map(tier.of, tiles) if residency.slot is not None]


def _stands(tier: Tier, residency: Residency, *, in_ram: bool) -> Stands:
    """Return where a tile stands. In RAM that holds everything under a device, copies are older and nobody looks."""
    packed = tier.arena.packed
    return Stands(residency.tile, _offset_of(residency) if packed else IN_SLOT,
                  residency.state is DIRTY and (packed or not in_ram))  # fmt: skip


def _offset_of(residency: Residency) -> int:
    assert residency.slot is not None
    return residency.slot.offset


def error_of(tiers: Tiers, program: Program) -> BaseException | None:
    """Return the error of a write of the newest bytes of one of the program's tiles, here or below; None if all went well."""
    given = set(program.inputs.values())
    events = (event for tile in program.standing if tile not in given for event in _writes(tiers, tile))
    return next((event.error for event in events if event.error is not None), None)


def _writes(tiers: Tiers, tile: Tile) -> Iterable[StreamEvent]:
    """Yield the events of the last writes of a tile's newest bytes, from the top down."""
    for tier in tiers.caps.tiers:
        residency = tier.of(tile)
        if residency.slot is not None and residency.written is not None:
            yield residency.written
        if residency.state is DIRTY:
            return
        if residency.saved is not None:
            yield residency.saved


def stand(
    tiers: Tiers,
    stands: Iterable[Standing],
    slots: Slots,
    failure: Callable[[int], BaseException | None] = lambda entry: None,
) -> None:
    """Make the ledgers say that tiles stand as in `stands`. Nothing may be in flight; this is not checked.

    slots: the slot of each place. failure: returns the error of an entry, None if it went well.
    """
    found = list(stands)
    in_ram = {one.tile for one in found if one.tier == RAM}
    for number, tier in enumerate(tiers.from_the_top()):
        here = [one for one in found if one.tier == number]
        tier.assume([
            (tier.of(one.tile), one.state, None if one.place is None else slots[one.place], NEVER)
            for one in here
        ])  # fmt: skip
        for one in here:
            residency = tier.of(one.tile)
            if tier is not tiers.host and residency.backing is None and one.tile in in_ram:
                residency.backing = tiers.host.of(one.tile)
            residency.written = _failed(failure, one.written)
            residency.saved = _failed(failure, one.saved)


def unknown(tiers: Tiers, stands: Collection[Standing]) -> bool:
    """Return whether a device has copies of tiles of `stands` that are not among them. A single device has none."""
    if len(tiers.tops) == 1:
        return False
    known, tiles = {(one.tier, one.tile) for one in stands}, {one.tile for one in stands}
    return any(
        residency.tile in tiles and (number, residency.tile) not in known
        for number, tier in enumerate(tiers.from_the_top()) if tier is not tiers.host for residency in tier.ledger.resident
    )  # fmt: skip


def in_the_way(tiers: Tiers, program: Program) -> list[Residency]:
    """Return the copies on devices that a schedule of the program may not find there.

    A tile that several devices use must not be newer on one of them when a run begins. And a device that does not use a tile
    must have no copy of it that is newer, or that becomes older.
    """
    if len(tiers.tops) == 1:
        return []
    views, found = views_of(program), []
    standing = set(program.standing)
    written = {tile for entry in program.entries for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ}
    for top, view in zip_longest(tiers.tops, views):
        own = set() if view is None else set(view.program.standing)
        alone = own if view is None else own - view.shared
        for residency in top.ledger.resident:
            is_newer = residency.state is DIRTY
            is_known = residency.tile in (alone if is_newer else own)
            if residency.tile in standing and not is_known and (is_newer or residency.tile in written):
                found.append(residency)
    return found


def _failed(failure: Callable[[int], BaseException | None], entry: int) -> StreamEvent | None:
    """Return a failed event for an entry that did not go well, else None."""
    error = None if entry == NOBODY else failure(entry)
    return None if error is None else failed(error)
