"""How tiles come to where a schedule begins, and where they stand once it was left: the tiers before and after playing.

While a schedule is played the ledgers say nothing: it ends each step where the ledgers left off. Only who leaves in the middle
of one, at a mark, has to tell them. Which slot is which place is bound.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from asynctile.memory.tier import Tier
from asynctile.memory.tiers import Tiers
from asynctile.program.operation import READ
from asynctile.program.operation import WRITE as OVERWRITE
from asynctile.schedule.schedule import NOBODY, TOP, Place, Schedule, Standing, absolute
from asynctile.storage.residency import ABSENT, CLEAN, DIRTY, WRITE
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent

#: The slot of each place.
Slots = Mapping[Place, Slot]


def in_slots(stands: Iterable[Standing], number: int) -> dict[Tile, Standing]:
    """Those that have a slot in tier `number`."""
    return {one.tile: one for one in stands if one.tier == number and one.place is not None}


async def arrange(tiers: Tiers, schedule: Schedule) -> bool:
    """Bring every tile to the tiers in which the schedule expects it, in whichever slot; False if that cannot be.

    At most one cap of bytes a tier. What else stands in a tier that is divided leaves. A move that fails is met by coroutines,
    which can tell what that means for its tile: until all have gone well, nothing is known here that was not before.
    """
    for number, tier in enumerate(tiers.from_the_top()):
        wanted = in_slots(schedule.start, number)
        send_away(tier, wanted)
        for tile in wanted:
            residency = tier.of(tile)
            if residency.slot is None:
                tier.admit((residency,), OVERWRITE if residency.state is ABSENT else READ)
    await tiers.run_ahead.settle()
    if not _are_whole(tiers, schedule):
        return False
    for number, tier in enumerate(tiers.from_the_top()):
        take_as_changed(tiers, tier, in_slots(schedule.start, number))
    return _is_arranged(tiers, schedule)


def send_away(tier: Tier, wanted: Mapping[Tile, Standing]) -> None:
    """Let all leave that should be as below and are not; and where slots are few, those that are not wanted."""
    for residency in list(tier.ledger.resident):
        one = wanted.get(residency.tile)
        if tier.arena.divided if one is None else (one.state is CLEAN and residency.state is DIRTY):
            tier.give_up(residency)


def take_as_changed(tiers: Tiers, tier: Tier, wanted: Mapping[Tile, Standing]) -> None:
    """What a schedule writes back counts as changed, also if it has come from below just now."""
    for tile, one in wanted.items():
        residency = tier.of(tile)
        if one.state is DIRTY and residency.state is CLEAN:
            tier.ledger.change(residency, WRITE)
            if tier.link is tiers.link is not None and tiers.host.arena.divided:
                tiers.link.used(residency, residency.next_use, True)


def _are_whole(tiers: Tiers, schedule: Schedule) -> bool:
    """Whether what wrote the tiles here, and below, has gone well."""
    found = [tiers.from_the_top()[one.tier].of(one.tile) for one in schedule.start]
    events = [event for residency in found for event in (residency.written, residency.saved) if event is not None]
    return all(event.done and event.error is None for event in events)


def _is_arranged(tiers: Tiers, schedule: Schedule) -> bool:
    """Whether every tile is where the schedule expects it, and as it does."""
    for one in schedule.start:
        residency = tiers.from_the_top()[one.tier].of(one.tile)
        if residency.state is not one.state or (residency.slot is None) is not (one.place is None):
            return False
    return True


def stand(
    tiers: Tiers, stands: Iterable[Standing], slots: Slots, base: int, failure: Callable[[int], BaseException | None]
) -> None:
    """Tell the tiers that tiles stand as in `stands`; nothing may be in flight.

    base: the position that the first entry of the program has. failure: of an entry, None if it went well.
    """
    found = list(stands)
    for number, tier in enumerate(tiers.from_the_top()):
        here = [one for one in found if one.tier == number]
        tier.assume([
            (tier.of(one.tile), one.state, None if one.place is None else slots[one.place], absolute(one.next_use, base))
            for one in here
        ])  # fmt: skip
        for one in here:
            residency = tier.of(one.tile)
            if number == TOP and tiers.link is not None and one.backed and residency.backing is None:
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
