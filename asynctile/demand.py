"""What a program demands of an arena: slot sizes, the floor, and how much would hold everything.

Pure; storage/arena.py divides a cap by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from asynctile.handle import Handle
from asynctile.operation import Operation
from asynctile.program import Fetch, Program
from asynctile.storage.arena import Demand, align
from asynctile.storage.tile import NEVER

#: Tiles of at most 1/8 of the largest one live in small slots.
SMALL_SHARE = 8


def measure(programs: Iterable[Program], standing: Iterable[Handle]) -> Demand:
    """Demand of `programs`, of which one runs at a time, over `standing` tiles that stay between runs."""
    programs = list(programs)
    persistent = set(standing)
    for program in programs:
        persistent.update(program.inputs.values())
    tiles = persistent.union(*(program.temporaries for program in programs))
    exact = {align(tile.nbytes) for tile in tiles}
    large = max(exact)
    small = max((size for size in exact if size <= large // SMALL_SHARE), default=0)

    def is_large(tile: Handle) -> int:
        return int(align(tile.nbytes) > small)

    floor, what = [0, 0], "the program"
    for program in programs:
        for entry in program.entries:
            counts = [0, 0]
            for tile in _tiles(entry):
                counts[is_large(tile)] += 1
            if counts[1] > floor[1] or counts[0] > floor[0]:
                what = repr(entry) if counts[1] > floor[1] else what
                floor = [max(floor[0], counts[0]), max(floor[1], counts[1])]
    full, resident = [0, 0], sum(align(tile.nbytes) for tile in persistent)
    for tile in persistent:
        full[is_large(tile)] += 1
    peaks = [_live_peak(program, is_large) for program in programs]
    full = [count + max((peak[kind] for peak in peaks), default=0) for kind, count in enumerate(full)]
    resident += max((peak[2] for peak in peaks), default=0)
    first = 0 if small else 1
    return Demand(
        ((small, large) if small else (large,)),
        tuple(floor[first:]),
        tuple(full[first:]),
        exact=exact,
        resident_nbytes=resident,
        what=what,
    )


def _tiles(entry: object) -> set[Handle]:
    if isinstance(entry, Operation):
        return set(entry.operands)
    return {entry.tile} if isinstance(entry, Fetch) else set()


def _live_peak(program: Program, is_large: Callable[[Handle], int]) -> tuple[int, int, int]:
    """The most small and large temporaries alive at once, and their bytes."""
    alive: set[Handle] = set()
    counts, nbytes = [0, 0], 0
    peak = [0, 0, 0]
    for entry, uses in zip(program.entries, program.next_uses, strict=True):
        operands = entry.operands if isinstance(entry, Operation) else (entry.tile,) if isinstance(entry, Fetch) else ()
        for tile in operands:
            if not tile.persistent and tile not in alive:
                alive.add(tile)
                counts[is_large(tile)] += 1
                nbytes += align(tile.nbytes)
        peak = [max(peak[0], counts[0]), max(peak[1], counts[1]), max(peak[2], nbytes)]
        for tile, use in zip(operands, uses, strict=True):
            if use == NEVER and not tile.persistent and tile in alive:
                alive.remove(tile)
                counts[is_large(tile)] -= 1
                nbytes -= align(tile.nbytes)
    return peak[0], peak[1], peak[2]
