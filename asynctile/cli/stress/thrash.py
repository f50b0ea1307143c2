"""Scenario `thrash`: several passes over a working set just above the budget, one slot too few.

This is the oldest trap of caches: evicting the least recently used tile loads every tile in every pass. Covers the program, the
fewest loads that any order of evictions needs (Belady's MIN), and the bound that ours must keep.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.place import EngineSetup
from asynctile.cli.stress.round import Round
from asynctile.cli.stress.work import Workload
from asynctile.ops import add, gemm, scale
from asynctile.program.operation import WRITE, Operation
from asynctile.program.program import Program
from asynctile.share import runtime_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import align
from asynctile.storage.tile import NEVER, Tile

__all__ = ["least_loads", "play"]

_EDGE = 32
_TILES, _PASSES = (12, 32), (4, 8)
#: Loads, as a multiple of the fewest possible and with slots kept free for prefetch, above which tiles thrash.
_MOST_LOADS = 6.0


async def play(round: Round) -> bool:
    """Play a round. Every round counts."""
    work, passes = _cycle(round.chance)
    place = _one_slot_too_few(round.chance, work)
    expected = work.interpret(work.values)
    async with round.engine(place) as engine:
        await work.store(engine)
        before = runtime_of(engine).tiers.top.loaded_nbytes
        outcome = await work.run(engine)
        loads = (runtime_of(engine).tiers.top.loaded_nbytes - before) // (_EDGE * _EDGE * 4)
        (await work.read(engine, outcome)).expect(expected)
        await work.release(engine)
    least = least_loads([entry for entry in work.program.entries if isinstance(entry, Operation)], len(work.values) - 1)
    round.tally.worst_loads = max(round.tally.worst_loads, loads / least)
    if loads > least * _MOST_LOADS + passes:
        raise Finding("failed", f"{loads} tiles were loaded where {least} would do, in {passes} passes over {len(work.values)} "
                                f"tiles with one slot too few ({place})")
    return True


def _cycle(chance: random.Random) -> tuple[Workload, int]:
    """Return a workload and its number of passes.

    Each pass updates every tile to its mean with the tile before it, or to that tile's product with another: one in five, drawn
    at random.
    """
    count, passes = chance.randint(*_TILES), chance.randint(*_PASSES)
    normal = np.random.default_rng(chance.getrandbits(64)).standard_normal
    tiles = [Tile(f"a[{index}]", (_EDGE, _EDGE), persistent=True) for index in range(count)]
    program = Program("thrash")
    for number in range(passes * count):
        tile, last = tiles[number % count], tiles[number % count - 1]
        if chance.random() < 0.2:
            program.add(gemm(last, chance.choice([other for other in tiles if other is not tile]), tile))
        else:
            program.add(add(last, tile))
            program.add(scale(tile, 0.5))
    values = {tile: normal(tile.shape, np.float32) / np.float32(np.sqrt(_EDGE)) for tile in tiles}
    return Workload(program.finish(), values, {}), passes


def _one_slot_too_few(chance: random.Random, work: Workload) -> EngineSetup:
    """Return a place on any device with one slot too few; below an emulated one, RAM may be one slot too small as well."""
    count, nbytes = len(work.values), _EDGE * _EDGE * 4
    slots = (count - 1) * nbytes
    prefetch = chance.choice((0, 1, 2, 8))
    if chance.random() < 0.5:
        return EngineSetup(device="cpu", host_memory=(count - 1) * align(nbytes, PAGE), prefetch=prefetch)
    spill = chance.random() < 0.5
    host = (count - 1) * align(nbytes, PAGE) if spill else None
    return EngineSetup(device="emulated", device_memory=slots, host_memory=host, spill=spill, prefetch=prefetch)


def least_loads(operations: Sequence[Operation], slots: int) -> int:
    """Return the loads of a run that evicts the tile with the furthest next use.

    All tiles are below at first, and no slot is kept free.
    """
    upcoming: dict[Tile, list[int]] = {}
    for position, operation in enumerate(operations):
        for tile in set(operation.operands):
            upcoming.setdefault(tile, []).append(position)
    held: set[Tile] = set()
    loads = 0
    for operation in operations:
        for tile in set(operation.operands):
            upcoming[tile].pop(0)
        for tile, how in zip(operation.operands, operation.access, strict=True):
            if tile in held:
                continue
            loads += how != WRITE
            if len(held) == slots:
                others = held - set(operation.operands)
                held.remove(max(others, key=lambda other: upcoming[other][0] if upcoming[other] else NEVER))
            held.add(tile)
    return max(loads, 1)
