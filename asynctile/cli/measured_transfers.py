"""What a transfer between RAM and a file costs the cores, measured over an engine's own path.

A transfer takes the cores longer than its bytes do: the loop begins it, a thread moves and checks it, and a worker hears of it.
So a program of copies runs in RAM and over a file, and the difference counts. It is no model and no step.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time

import numpy as np

from asynctile.engine import Engine
from asynctile.ops import copy
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.schedule.rates import Rates
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile

__all__ = ["transfers_per_s"]

#: Copies of a program. Each but the first few reads a tile and writes one.
COPIES = 256
#: The cap over the file, in tiles: room for transfers ahead of the copies, and no more.
CAP = 24
#: Runs before those that count, how many runs count together, and how often.
FIRST, RUNS, TRIES = 3, 3, 5


def transfers_per_s(edge: int, rates: Rates) -> float:
    """Return the bytes a second that all cores together would carry to and from a file, if they did nothing else.

    edge: of the tiles, float32. rates: of the cores. The file is in the current folder. AsynctileError if there is too little
    RAM or disk.
    """
    with tempfile.TemporaryDirectory(dir=".") as folder:
        in_ram_s, _ = asyncio.run(_spent(Engine("cpu", rates=rates), edge))
        over_file = Engine("cpu", host_memory=CAP * 4 * edge * edge, spill=folder, rates=rates)
        over_file_s, nbytes = asyncio.run(_spent(over_file, edge))
    # A copy takes less time than the transfers beside it. The bound keeps noise from hiding them.
    return len(os.sched_getaffinity(0)) * nbytes / max(over_file_s - in_ram_s, over_file_s / 2)


async def _spent(engine: Engine, edge: int) -> tuple[float, int]:
    """Return the core seconds of a run of the program, and the bytes that it carries to and from the file."""
    tiles = [Tile(f"tile {index}", (edge, edge), persistent=True) for index in range(2 * COPIES)]
    program = Program("transfers")
    for source, to in zip(tiles[::2], tiles[1::2], strict=True):
        program.add(copy(source, to))
    demand = demand_of([program.finish()], tiles)

    async def run() -> None:
        async with runtime.exclusive():
            begun = await runtime.start(program, demand, {})
            await begun.finish()

    async with engine:
        runtime = runtime_of(engine)
        await runtime.reserve(demand)
        await runtime.store((tile, np.zeros((edge, edge), np.float32)) for tile in tiles)
        for _ in range(FIRST):
            await runtime.call(run())
        spent, before = [], engine.statistics()
        for _ in range(TRIES):
            began = time.process_time()
            for _ in range(RUNS):
                await runtime.call(run())
            spent.append((time.process_time() - began) / RUNS)
        after = engine.statistics()
    nbytes = after.spill_read_bytes + after.spill_written_bytes - before.spill_read_bytes - before.spill_written_bytes
    return statistics.median(spent), nbytes // (TRIES * RUNS)
