"""Random starts: tiles of a program, and of others, anywhere in memory, as if any program had left them there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np

from asynctile.program.program import Program
from asynctile.program.view import views_of
from asynctile.schedule.decide import Cut, Space
from asynctile.schedule.start import IN_SLOT, Stands, Start
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import align
from asynctile.storage.tile import Tile
from tests.schedule.spaces import SIZES


def start_by(chance: random.Random, program: Program, space: Space) -> Start:
    """Draw a start of `program` in `space`. Tiles that stand nowhere are in the tier below all others, or unwritten."""
    inputs = list(dict.fromkeys(program.inputs.values()))
    own = [tile for tile in program.standing if tile not in inputs]
    others = [Tile(f"other {n}", (chance.choice(SIZES),), np.uint8, persistent=True) for n in range(chance.randint(0, 3))]
    if space.ram is not None and space.ram.cap is not None:  # they have come through RAM
        others = [tile for tile in others if align(tile.nbytes, PAGE) <= space.ram.cap]
    unwritten = {tile for tile in own if tile not in program.first_uses and chance.random() < 0.5}
    written = [tile for tile in own if tile not in unwritten]
    must_stand = space.ram is None and space.disk is None
    first, *further = tops = _tops(chance, space.top, program, written, others, must_stand)
    top = [one for stands in tops for one in stands]
    if space.ram is None:
        given = [Stands(tile, IN_SLOT, True) for tile in inputs] if space.top.cap is None else []
        return Start(((*top, *given),), frozenset(unwritten))
    above = {one.tile for one in top if one.changed}
    below = [tile for tile in written if tile not in above]
    if space.ram.cap is not None:
        ram = _drawn(chance, space.ram, below, [tile for tile in others if tile not in above], all_stand=False)
    else:
        below += [one.tile for one in top if one.tile in others and not one.changed]
        copies = [tile for tile in above if chance.random() < 0.5]
        below = [tile for tile in below if space.disk is None or chance.random() < 0.5]
        ram = [Stands(tile, IN_SLOT, False) for tile in (*inputs, *below, *copies)]
    return Start((tuple(first), tuple(ram), *map(tuple, further)), frozenset(unwritten))


def _tops(
    chance: random.Random, cut: Cut, program: Program, written: Sequence[Tile], others: Sequence[Tile], all_stand: bool
) -> list[list[Stands]]:
    """Draw which tiles stand on each device: its own ones, unchanged if it shares them, and tiles of other programs."""
    found = []
    for number, view in enumerate(views_of(program)):
        own = [tile for tile in written if tile in view.program.standing]
        theirs = [tile for count, tile in enumerate(others) if count % program.devices == number]
        stands = _drawn(chance, cut, own, theirs, all_stand=all_stand)
        found.append([one._replace(changed=one.changed and one.tile not in view.shared) for one in stands])
    return found


def _drawn(
    chance: random.Random, cut: Cut, own: Iterable[Tile], others: Iterable[Tile], *, all_stand: bool
) -> list[Stands]:
    """Draw which tiles stand in a tier. In slots there are none but the program's own."""
    if cut.cap is None:
        return [Stands(tile, IN_SLOT, chance.random() < 0.5) for tile in own if all_stand or chance.random() < 0.5]
    found: list[Stands] = []
    tiles = [*own, *others]
    for tile in chance.sample(tiles, chance.randint(0, len(tiles))):
        size, cap = align(tile.nbytes, cut.alignment), cut.cap // cut.alignment * cut.alignment
        spots = [spot for spot in range(0, cap - size + 1, cut.alignment) if _is_free(found, spot, size, cut.alignment)]
        if spots:
            found.append(Stands(tile, chance.choice((spots[0], spots[-1], chance.choice(spots))), chance.random() < 0.5))
    return sorted(found, key=lambda one: one.offset)


def _is_free(found: Iterable[Stands], begin: int, size: int, alignment: int) -> bool:
    return all(begin + size <= one.offset or one.offset + align(one.tile.nbytes, alignment) <= begin for one in found)
