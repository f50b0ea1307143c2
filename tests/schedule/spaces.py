"""Random spaces: every kind of tier above every other, with caps from just enough for a step to more than it wants."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from asynctile.program.operation import HOST
from asynctile.program.program import Mark, Program
from asynctile.schedule.decide import Cut, Space
from asynctile.schedule.rates import CORES
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import align
from asynctile.storage.tile import Tile

#: Bytes of tiles: below, at and above the alignments of devices and of pages.
SIZES = (1, 64, 200, 4096, 5000, 9000)
#: Names of what is capped: the device, and RAM below it, "" where there is none; then "+" for a cap over the tier below.
KINDS = ("cpu", "cpu+", "device", "device+", "device over ram+", "device+ over ram+")


def space_by(chance: random.Random, program: Program, kind: str) -> Space:
    """Draw a space of that kind. Nearly all programs fit, see `fits`."""
    above, _, ram = kind.partition(" over ")
    is_device, alignment = above.startswith("device"), chance.choice((64, 256))
    if above == "cpu+":
        alignment = PAGE
    depth = chance.choice((1, 2, 8, 100))
    top_cap = _cap(chance, program, alignment, has_link=is_device) if above.endswith("+") else None
    spread = {size: chance.randint(0, 2) for size in (256, 4096, 5120)} if top_cap is None else {}
    top = Cut(alignment, top_cap, spread, chance.choice((1, 2, math.inf)))
    if not is_device:
        return Space(top, None, None if top_cap is None else PAGE, depth, CORES)
    below = Cut(64, None, {}) if not ram else Cut(PAGE, _ram_cap(chance, program), {})
    return Space(top, below, PAGE if ram else None, depth, CORES)


def fits(program: Program, space: Space) -> bool:
    """Return whether the caps hold what is wanted at once, so that a schedule must be found."""
    top, has_link = space.top, space.ram is not None
    if top.cap is not None and top.cap < floor(program, top.alignment, has_link=has_link):
        return False
    return space.ram is None or space.ram.cap is None or space.ram.cap >= ram_floor(program)


def nbytes(tiles: Iterable[Tile], alignment: int) -> int:
    return sum(align(tile.nbytes, alignment) for tile in set(tiles))


def floor(program: Program, alignment: int, *, has_link: bool) -> int:
    """Return the most bytes that an operation wants at once."""
    sizes = [nbytes(entry.tiles, alignment) for entry in program.entries if not (has_link and entry.device == HOST)]
    if not has_link:
        sizes += [nbytes(tiles, alignment) for tiles in program.rewritten.values()]
    return max(sizes, default=0)


def ram_floor(program: Program) -> int:
    """Return the most bytes that are wanted at once in RAM below a device."""
    wanted = [entry.tiles for entry in program.entries if entry.device == HOST and not isinstance(entry, Mark)]
    wanted += [*program.rewritten.values(), *((tile,) for tile in every(program))]
    return max((nbytes(tiles, PAGE) for tiles in wanted), default=0)


def every(program: Program) -> set[Tile]:
    return {*program.standing, *program.temporaries, *program.inputs.values()}


def _cap(chance: random.Random, program: Program, alignment: int, *, has_link: bool) -> int:
    return _between(chance, floor(program, alignment, has_link=has_link), nbytes(every(program), alignment))


def _ram_cap(chance: random.Random, program: Program) -> int:
    return _between(chance, ram_floor(program), nbytes(every(program), PAGE))


def _between(chance: random.Random, least: int, most: int) -> int:
    """Draw a number, mostly a small one, because then more tiles are loaded and evicted."""
    return least + int(chance.random() ** 2 * (1.1 * most - least))
