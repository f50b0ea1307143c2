"""The memory that a program needs from an arena: slot sizes, the floor, and the size that would hold everything.

Pure. storage/arena.py divides a cap by these numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from asynctile.program.operation import HOST, Operation
from asynctile.program.program import Entry, Program
from asynctile.storage.demand import Demand, align
from asynctile.storage.tile import NEVER, Tile

#: Of the tiles of one size that come down for host operations, one in so many has a slot in RAM at once. That is enough for the
#: tiles that come down in one piece of a step while the host uses those of the piece before (asynctile/schedule/pieces.py).
IN_TURN = 5
#: Tiles of at most 1/8 of the largest one get small slots.
SMALL_SHARE = 8


def demand_of(programs: Iterable[Program], standing: Iterable[Tile]) -> Demand:
    """Return the demand of `programs`, of which one runs at a time, over `standing` tiles that stay between runs."""
    programs = list(programs)
    persistent = set(standing)
    for program in programs:
        persistent.update(program.inputs.values())
    tiles = persistent.union(*(program.temporaries for program in programs))
    sizes = {align(tile.nbytes) for tile in tiles}
    large = max(sizes)
    small = max((size for size in sizes if size <= large // SMALL_SHARE), default=0)
    entries = [entry for program in programs for entry in program.entries]
    floor, what = _floor((entry for entry in entries if entry.device != HOST), small)
    at_host, what_at_host = _floor((entry for entry in entries if entry.device == HOST), small)
    exact = Counter(align(tile.nbytes) for tile in persistent)
    exact += _union(_live_peak(program) for program in programs)
    first = 0 if small else 1  # without small tiles there is one size
    return Demand(
        (small, large)[first:], floor[first:], exact, what or "the program", persistent,
        at_host=at_host[first:], what_at_host=what_at_host, in_turn=_union(_in_turn(program) for program in programs),
    )  # fmt: skip


def _floor(entries: Iterable[Entry], small: int) -> tuple[tuple[int, ...], str]:
    """Return the most (small, large) tiles that one of the entries needs at once, and a description of that entry."""
    floor, what = (0, 0), ""
    for entry in entries:
        counts = [0, 0]
        for tile in set(entry.tiles):
            counts[align(tile.nbytes) > small] += 1
        if counts[1] > floor[1]:
            what = _describe(entry)
        floor = max(floor[0], counts[0]), max(floor[1], counts[1])
    return floor, what


def _describe(entry: Entry) -> str:
    kernel = entry.kernel if isinstance(entry, Operation) else type(entry).__name__.lower()
    return f"{kernel} of {entry.tiles[0].name}"


def _in_turn(program: Program) -> Counter[int]:
    """Return extra slots for temporaries that the device makes for host operations, beyond those alive at once."""
    operations = [entry for entry in program.operations() if entry.device == HOST]
    tiles = {tile for operation in operations for tile in operation.operands if not tile.persistent}
    counts = Counter(align(tile.nbytes) for tile in tiles)
    return Counter({size: -(-count // IN_TURN) for size, count in counts.items() if count > 1})


def _union(counters: Iterable[Counter[int]]) -> Counter[int]:
    """Return the largest count of each size: programs run one at a time."""
    union: Counter[int] = Counter()
    for counter in counters:
        union |= counter
    return union


def lives(program: Program) -> Iterator[tuple[list[int], list[int]]]:
    """Yield, for each entry, the aligned sizes of the temporaries born with it, and of the temporaries dead behind it."""
    alive: set[Tile] = set()
    for entry, uses in zip(program.entries, program.next_uses, strict=True):
        born, dead = [], []
        for tile in entry.tiles:
            if not tile.persistent and tile not in alive:
                alive.add(tile)
                born.append(align(tile.nbytes))
        for tile, use in zip(entry.tiles, uses, strict=True):
            if use == NEVER and tile in alive:
                alive.remove(tile)
                dead.append(align(tile.nbytes))
        yield born, dead


def _live_peak(program: Program) -> Counter[int]:
    """Return, for each size, the most temporaries that are alive at once."""
    count: Counter[int] = Counter()
    peak: Counter[int] = Counter()
    for born, dead in lives(program):
        for size in born:
            count[size] += 1
            peak[size] = max(peak[size], count[size])
        for size in dead:
            count[size] -= 1
    return peak
