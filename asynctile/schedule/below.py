"""The uses of RAM below a device: what the device's moves do there. With them, the walk of a device also plans RAM over a disk.

RAM is used when a tile comes up (it is read there), goes down (it is written there), is used by a host operation, or gets new
bytes from the host. When the device changes a tile, the bytes in RAM are dead, because the newest are above. A tile that stays
on the device until it is changed is dead in RAM as soon as it comes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from asynctile.program.operation import HOST, READ
from asynctile.program.program import Mark, Program
from asynctile.schedule.pace import Pace
from asynctile.schedule.packing import Act, Packing
from asynctile.schedule.uses import READS, WRITES, EntryUses, Uses, hows_of, is_dead, seconds_of, tiles_of
from asynctile.storage.tile import NEVER, Tile


class Way(IntEnum):
    """How RAM is used: by a tile that comes up or goes down, by a host operation, by bytes that the host puts there.

    CHANGED and MADE are no uses: the tile changes where it stands above, or is made anew there.
    """

    UP = 0
    DOWN = 1
    HERE = 2
    GIVEN = 3
    CHANGED = 4
    MADE = 5


class Touch(NamedTuple):
    """One entry of RAM. hows: the access of each tile. seconds: the time that it takes by itself."""

    way: Way
    hows: dict[Tile, int]
    seconds: float


def below(
    packing: Packing, alignment: int, link: Pace, pace: Pace, *, inputs_stand: bool, others: Sequence[Tile] = ()
) -> Uses:
    """Return the uses of RAM that the moves of `packing`, in the tier above it, make, in order.

    link: the pace of the tier above. pace: of RAM and the tier below it. inputs_stand: before a run the host writes inputs to
    RAM; otherwise below it. others: tiles that stand in either tier, though the program does not use them.
    """
    program = packing.program
    numbers = {tile: number for number, tile in enumerate((*tiles_of(program), *others))}
    inputs = [numbers[tile] for tile in program.inputs.values()] if inputs_stand else []
    touches = list(_touches(packing, link))
    entries = []
    for touch, later in zip(touches, _next_uses(program, touches, repeats=packing.end is None), strict=True):
        used = [(numbers[tile], how, *later[tile]) for tile, how in touch.hows.items()]
        entries.append(EntryUses(used, seconds=touch.seconds, on_host=touch.way >= Way.CHANGED))
    return Uses(program, alignment, pace, entries, inputs, has_link=False, others=others)


def _touches(packing: Packing, link: Pace) -> Iterator[Touch]:
    """Yield the uses of RAM, in order.

    Each takes at least as long as the device has computed since the use before.
    """
    program, changed, computed_s = packing.program, set(packing.changed), 0.0
    for index, moves in enumerate(packing.moves):
        for act, tile, _ in moves:
            if act is Act.LOAD:
                yield Touch(Way.UP, {tile: READS}, max(computed_s, tile.nbytes / link.link_per_s))
                computed_s = 0.0
            elif act in (Act.LEAVE, Act.SAVE) and tile in changed:
                yield Touch(Way.DOWN, {tile: WRITES}, max(computed_s, tile.nbytes / link.link_per_s))
                changed.discard(tile)
                computed_s = 0.0
        if index == len(program):
            yield from (Touch(Way.CHANGED, {tile: WRITES}, 0.0) for tile in packing.to_take(changed))
            return
        entry, ranks = program.entries[index], program.device_uses[index]
        written = [tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ]
        if isinstance(entry, Mark):
            given = program.rewritten[entry.name]
            if given:
                yield Touch(Way.GIVEN, dict.fromkeys(given, WRITES), 0.0)
            changed.difference_update(given)
        elif entry.device == HOST:
            yield Touch(Way.HERE, hows_of(entry), seconds_of(link, entry, on_host=True))
            changed.difference_update(written)
        else:
            born = dict(packing.births.get(index, ()))
            for tile in dict.fromkeys(written):
                if tile.persistent and tile not in changed:
                    yield Touch(Way.MADE if tile in born else Way.CHANGED, {tile: WRITES}, 0.0)
            computed_s += seconds_of(link, entry, on_host=False)
            changed.update(written)
        changed.difference_update(tile for tile, rank in zip(entry.tiles, ranks, strict=True) if is_dead(tile, rank))


def _next_uses(program: Program, touches: Sequence[Touch], *, repeats: bool) -> list[dict[Tile, tuple[int, bool]]]:
    """Return for each entry of RAM, and each of its tiles, (next use, whether the tile is dead behind it).

    The next use is the position at which the tile's bytes are needed there, perhaps in the next run; NEVER if they are
    overwritten first. repeats: the next run is the same. If it is another one, it finds what this one leaves.
    """
    inputs, count = set(program.inputs.values()), len(touches)
    upcoming: dict[Tile, tuple[int, Touch]] = {}
    for position in range(count - 1, -1, -1):
        stay = (tile for tile in touches[position].hows if tile.persistent and tile not in inputs)
        upcoming.update((tile, (position + count, touches[position])) for tile in stay)
    backwards = []
    for position in range(count - 1, -1, -1):
        touch, found = touches[position], {}
        for tile in touch.hows:
            later, next_touch = upcoming.get(tile, (NEVER, None))
            again = NEVER if next_touch is None or next_touch.hows[tile] == WRITES else later
            if touch.way >= Way.CHANGED:
                is_over = True
            elif tile.persistent and tile not in inputs:
                is_changed = next_touch is not None and next_touch.way is Way.CHANGED and (repeats or later < count)
                is_over = touch.way is Way.UP and is_changed
            else:
                is_over = again == NEVER and touch.way is not Way.GIVEN
            found[tile] = again, is_over
        backwards.append(found)
        upcoming.update((tile, (position, touch)) for tile in touch.hows)
    return backwards[::-1]
