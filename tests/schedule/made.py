"""Random programs with everything that a plan of memory must handle.

They have persistent tiles of many sizes, temporaries, inputs, marks at which the host writes, operations of the host, results
for it, and operands that are named twice. They compute nothing: no kernel has their names.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from asynctile.program.operation import DEVICE, HOST, READ, UPDATE, WRITE, Operation
from asynctile.program.program import Program, Shipment
from asynctile.schedule import uses
from asynctile.schedule.uses import Uses
from asynctile.storage.tile import Tile
from tests.schedule.paces import OVER_LINK

#: The kinds of the next entry, repeated by frequency.
KINDS = ["operation"] * 12 + ["on host"] * 2 + ["fetch", "mark"]
#: The same for one of several nodes.
ON_A_NODE = [*KINDS, *["shipment"] * 4]


def program_by(
    chance: random.Random,
    *,
    sizes: tuple[int, ...] = (1, 2, 3, 5, 8),
    entries: int = 30,
    kinds: list[str] = KINDS,
    operands: int = 3,
) -> Program:
    """Draw up to `entries` entries of `kinds` on a dozen tiles of `sizes` bytes, with up to `operands` tiles each."""
    program = Program("by chance")
    tiles = [Tile(f"w{n}", (chance.choice(sizes),), np.uint8, persistent=True) for n in range(chance.randint(1, 6))]
    inputs = [program.input(f"x{n}", (chance.choice(sizes),), np.uint8) for n in range(chance.randint(0, 3))]
    made = [program.tile(f"t{n}", (chance.choice(sizes),), np.uint8) for n in range(chance.randint(0, 6))]
    tiles += inputs + made
    written = {tile for tile in tiles if tile.persistent}
    for number in range(chance.randint(1, entries)):
        kind = chance.choice(kinds)
        if kind == "mark":
            program.mark(f"m{number}", [tile for tile in inputs if chance.randint(0, 1)])
            continue
        used = {tile: chance.choice("rruw") for tile in chance.sample(tiles, min(chance.randint(1, operands), len(tiles)))}
        named = [(tile, how if tile in written else WRITE) for tile, how in used.items()]
        if kind == "fetch":
            if named[0][0] in written:
                program.fetch(named[0][0], f"y{len(program.fetches)}", ())
            continue
        if kind == "shipment":
            (tile, how), index = named[0], len(program)
            program.add(Shipment(tile, chance.randint(0, 2), index, READ if how == READ else WRITE))
            written.add(tile)
            continue
        if named[0][0] in written and chance.randint(0, 7) == 0:
            named.append((named[0][0], READ))
        program.add(Operation("none", tuple(tile for tile, _ in named), "".join(how for _, how in named),
                              device=HOST if kind == "on host" else DEVICE))  # fmt: skip
        written.update(used)
    return program.finish()


class Used(NamedTuple):
    """A record of `Uses`, with its access as operations name it."""

    tile: int
    how: str
    again: int
    dies: bool


def uses_of(program: Program, alignment: int = 1, *, has_link: bool = True) -> Uses:
    return uses.uses_of(program, alignment, OVER_LINK, has_link=has_link)


def used(uses: Uses) -> list[list[Used]]:
    """Return the records by entry."""
    at = uses.entries["at"].tolist()
    records = [Used(tile, (READ, WRITE, UPDATE)[how], again, dies) for tile, how, again, dies in uses.uses.tolist()]
    return [records[at[index] : at[index + 1]] for index in range(len(uses))]


def rewritten(uses: Uses) -> dict[int, list[int]]:
    """Return the tiles that get other bytes from the host, by entry; entries without any are left out."""
    at, tiles = uses.entries["rewritten"].tolist(), uses.uses["tile"].tolist()
    return {index: tiles[at[index] : at[index + 1]] for index in range(len(uses)) if at[index] < at[index + 1]}


def on_host(uses: Uses) -> set[int]:
    return set(np.flatnonzero(uses.entries["on_host"]).tolist())
