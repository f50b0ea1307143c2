"""Programs made by chance, with all that a plan of memory must follow: tiles of many sizes that stay, temporaries, inputs,
marks at which the host writes, operations of the host, results for it, operands that are named twice.

They compute nothing: no kernel has their names.
"""

from __future__ import annotations

import random

import numpy as np

from asynctile.program.operation import DEVICE, HOST, READ, WRITE, Operation
from asynctile.program.program import Program
from asynctile.storage.tile import Tile

#: What comes next, by how often.
KINDS = ["operation"] * 12 + ["on host"] * 2 + ["fetch", "mark"]


def program_by(
    chance: random.Random,
    *,
    sizes: tuple[int, ...] = (1, 2, 3, 5, 8),
    entries: int = 30,
    kinds: list[str] = KINDS,
    operands: int = 3,
) -> Program:
    """Up to `entries` entries on a dozen of tiles of `sizes` bytes; of `kinds` entries, with up to `operands` tiles each."""
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
                program.fetch(named[0][0], "y", ())
            continue
        if named[0][0] in written and chance.randint(0, 7) == 0:
            named.append((named[0][0], READ))
        program.add(Operation("none", tuple(tile for tile, _ in named), "".join(how for _, how in named),
                              device=HOST if kind == "on host" else DEVICE))  # fmt: skip
        written.update(used)
    return program.finish()
