"""The tiers before and after a schedule runs: tiles are brought to its start, and the ledgers are told where it left them.

While a schedule runs, the ledgers are not kept. A complete run ends where the ledgers left off. A run that is left in
the middle, at a mark, must tell them where the tiles stand. bound.py says which slot is which place.
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

#: Slot of each place.
Slots = Mapping[Place, Slot]


def in_slots(stands: Iterable[Standing], number: int) -> dict[Tile, Standing]:
    """Return the standings that have a slot in tier `number`, by tile."""
    return {one.tile: one for one in stands if one.tier == number and one.place is not None}


async def fill(assembly: Assembly, program: Program, inputs: Mapping[str, np.ndarray], start: Iterable[Standing]) -> None:
    """Put the inputs of a program in RAM. If RAM is packed, only expect them as `start` says: they have no bytes yet."""
    tiers, stands = assembly.tiers, {one.tile: one for one in start if one.place is not None}
    for name, tile in program.inputs.items():
        if tiers.host.arena.packed:
            _expect(tiers.host, tile, stands)
        else:
            await assembly.put(tile, inputs[name])


def _expect(host: Tier, tile: Tile, stands: Container[Tile]) -> None:
    """Forget the bytes of an input: the host will write it in RAM, or in the tier below."""
    host.drop(host.of(tile), LOSE if tile in stands else REPLACE)


async def arrange(
    tiers: Tiers, program: Program, start: Sequence[Standing], unwritten: Collection[Tile]
) -> BaseException | None:
    """Bring the tiles of `program` to where `start` has them. Return the error of a move that failed, or None.

    A tile goes to any slot, or in a packed tier to its place. A tile that nobody has written only needs a place there.
    Other tiles leave a tier that is divided. Moves at most one cap of bytes in each direction of each tier. Until all
    moves have succeeded, the ledgers are not told anything new.
    """
    for number, tier in enumerate(tiers.from_the_top()):
        wanted = in_slots(start, number)
        if tier is not tiers.top and tier.arena.divided:  # everything that comes through RAM to the device has come
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
    """Evict the tiles that stand wrong: in another tile's place, dirty though wanted clean, or wanted `elsewhere`.

    Where the tier does not hold everything, tiles that are not wanted leave, too.
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
    """Return whether a tile is where it is wanted. In a pool, one slot is as good as another."""
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
    """Count tiles as dirty that a schedule writes back, even if they were just loaded."""
    for tile, one in wanted.items():
        residency = tier.of(tile)
        if one.state is DIRTY and residency.state is CLEAN:
            tier.ledger.change(residency, WRITE)
            if tier.link is tiers.link is not None and tiers.host.arena.divided:
                tiers.link.used(residency, residency.next_use, True)


def _error_of(tiers: Tiers, start: Iterable[Standing]) -> BaseException | None:
    """Return the error of a write to one of these tiles, here or below; None if all went well."""
    found = [tiers.from_the_top()[one.tier].of(one.tile) for one in start]
    events = (event for residency in found for event in (residency.written, residency.saved) if event is not None)
    return next((event.error for event in events if event.error is not None), None)


def _check(tiers: Tiers, program: Program, start: Iterable[Standing]) -> None:
    """Raise AsynctileError unless every tile of `start` is in its state there, with a slot exactly if it has a place there.

    Which slot it has is not checked. program: named in the message.
    """
    for one in start:
        residency = tiers.from_the_top()[one.tier].of(one.tile)
        if residency.state is not one.state or (residency.slot is None) is not (one.place is None):
            raise AsynctileError(f"{residency.name} should be {one.state} in tier {one.tier} before {program.name}, but is "
                                 f"{residency.state}; this is a bug in asynctile")


def stand(tiers: Tiers, stands: Iterable[Standing], slots: Slots, failure: Callable[[int], BaseException | None]) -> None:
    """Make the ledgers say that tiles stand as in `stands`. Nothing may be in flight; this is not checked.

    slots: the slot of each place. failure: returns the error of an entry, None if it went well.
    """
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
    """Return a failed event for an entry that did not go well, else None."""
    error = None if entry == NOBODY else failure(entry)
    if error is None:
        return None
    event = StreamEvent()
    event.done, event.error = True, error
    return event
