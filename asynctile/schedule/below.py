"""The uses of RAM below devices: what the devices' moves do there. With them, the walk of a device also plans RAM over a disk.

RAM is used when a tile comes up (it is read there), goes down (it is written there), is used by a host operation, or gets new
bytes from the host. When a device changes a tile, the bytes in RAM are dead, because the newest are above. A tile that stays
on a device until it is changed there, and that no other device needs before, is dead in RAM as soon as it comes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from asynctile.program.operation import HOST, READ, number_of
from asynctile.program.program import Mark, Program
from asynctile.program.view import View
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
    """One entry of RAM. hows: the access of each tile. seconds: the time that it takes by itself.

    device: the number of the device that moves or changes the tile; 0 for the host.
    """

    way: Way
    hows: dict[Tile, int]
    seconds: float
    device: int = 0


class Above(NamedTuple):
    """One device above RAM: its view of the program, and the packing for that."""

    view: View
    packing: Packing


def below(
    program: Program, above: Sequence[Above], alignment: int, link: Pace, pace: Pace, *, inputs_stand: bool,
    others: Sequence[Tile] = (),
) -> Uses:  # fmt: skip
    """Return the uses of RAM that the moves of all devices `above` it make, in the order of the whole program.

    link: the pace of each device. pace: of RAM and the tier below it. inputs_stand: before a run the host writes inputs to
    RAM; otherwise below it. others: tiles that stand in any tier, though the program does not use them.
    """
    numbers = {tile: number for number, tile in enumerate((*tiles_of(program), *others))}
    inputs = [numbers[tile] for tile in program.inputs.values()] if inputs_stand else []
    touches = list(_touches(program, [_Mover(number, *one) for number, one in enumerate(above)], link))
    repeats = all(one.packing.end is None for one in above)
    entries = []
    for touch, later in zip(touches, _next_uses(program, touches, repeats=repeats), strict=True):
        used = [(numbers[tile], how, *later[tile]) for tile, how in touch.hows.items()]
        entries.append(EntryUses(used, seconds=touch.seconds, on_host=touch.way >= Way.CHANGED))
    return Uses(program, alignment, pace, entries, inputs, has_link=False, others=others)


class _Mover:
    """One device on its way through its view of the program. changed: the tiles that it has changed since they came."""

    def __init__(self, number: int, view: View, packing: Packing) -> None:
        self.number = number
        self.packing = packing
        self.changed = set(packing.changed)
        self._program = view.program
        self._at = dict(zip(view.positions, range(len(view.positions)), strict=True))

    def moves(self, position: int, count: int) -> Iterator[tuple[Way, Tile]]:
        """Yield the moves over the link before entry `position` of the whole program, or behind its last entry `count` - 1."""
        index = len(self._program) if position == count else self._at.get(position)
        for act, tile, _ in () if index is None else self.packing.moves[index]:
            if act is Act.LOAD:
                yield Way.UP, tile
            elif act in (Act.LEAVE, Act.SAVE) and tile in self.changed:
                yield Way.DOWN, tile
                self.changed.discard(tile)

    def change(self, position: int, written: Sequence[Tile]) -> Iterator[Touch]:
        """Yield the changes that its own entry at `position` makes to tiles that are the same in RAM so far."""
        born = dict(self.packing.births.get(self._at[position], ()))
        for tile in dict.fromkeys(written):
            if tile.persistent and tile not in self.changed:
                yield Touch(Way.MADE if tile in born else Way.CHANGED, {tile: WRITES}, 0.0, self.number)
        self.changed.update(written)

    def end(self) -> Iterator[Touch]:
        """Yield the changes that count as made at the end."""
        for tile in self.packing.to_take(self.changed):
            yield Touch(Way.CHANGED, {tile: WRITES}, 0.0, self.number)

    def bury(self, position: int) -> None:
        """Forget the tiles that are dead on the device behind entry `position`."""
        if (index := self._at.get(position)) is not None:
            ranks = zip(self._program.entries[index].tiles, self._program.device_uses[index], strict=True)
            self.changed.difference_update(tile for tile, rank in ranks if is_dead(tile, rank))


def _touches(program: Program, movers: Sequence[_Mover], link: Pace) -> Iterator[Touch]:
    """Yield the uses of RAM, in order.

    Each takes at least as long as the devices, side by side, have computed since the use before.
    """
    computed_s, count = 0.0, len(program)
    for position in range(count + 1):
        for mover in movers:
            for way, tile in mover.moves(position, count):
                seconds = max(computed_s, tile.nbytes / link.link_per_s / len(movers))
                yield Touch(way, {tile: READS if way is Way.UP else WRITES}, seconds, mover.number)
                computed_s = 0.0
        if position == count:
            for mover in movers:
                yield from mover.end()
            return
        entry = program.entries[position]
        written = [tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ]
        if isinstance(entry, Mark):
            if written := list(program.rewritten[entry.name]):
                yield Touch(Way.GIVEN, dict.fromkeys(written, WRITES), 0.0)
        elif entry.device == HOST:
            yield Touch(Way.HERE, hows_of(entry), seconds_of(link, entry, on_host=True))
        else:
            yield from movers[number_of(entry.device)].change(position, written)
            computed_s += seconds_of(link, entry, on_host=False) / len(movers)
            written = []
        for mover in movers:
            mover.changed.difference_update(written)
            mover.bury(position)


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
                is_changed_next = next_touch is not None and (next_touch.way, next_touch.device) == (Way.CHANGED, touch.device)
                is_over = touch.way is Way.UP and is_changed_next and (repeats or later < count)
            else:
                is_over = again == NEVER and touch.way is not Way.GIVEN
            found[tile] = again, is_over
        backwards.append(found)
        upcoming.update((tile, (position, touch)) for tile in touch.hows)
    return backwards[::-1]
