"""What does the engine itself cost an operation?

    python bench/bench_overhead.py [--rounds 7] [--operations 4000] [--write]

Microseconds per operation whose kernel does nothing, with three inputs and one output, by the path of every other one: an
Operation in a Program, reservation, events and streams, in the capped arena of the emulated device with an unlimited link.
With all tiles resident (target: at most 10), and when every operation loads one tile and evicts one (at most 40), clean or
dirty.

    python bench/bench_overhead.py --against TREE [--starts 12] [--rounds 18]

The same of another commit's package and of this one in turn (bench/against.py). Targets: all resident at most 1 us more, with
moves at most 5% more.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import numpy as np
from against import compare
from common import Side, Table, alternate, arguments, publish, target
from numba import njit, types
from paired import Bound

from asynctile import Engine
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.storage.demand import align
from asynctile.storage.tile import Tile

SHAPE = (16, 16)
OUTPUTS = 16
TILE = types.float32[:, ::1]
RESIDENT = "all resident"
#: Whether every operation loads a tile and evicts one, and what it does to its tiles.
CASES = {
    RESIDENT: (False, "rrru"),
    "one load and one clean eviction each": (True, "rrru"),
    "one load and one write-back each": (True, "rruu"),
}


@njit([types.void(TILE, TILE, TILE, TILE)], nogil=True)
def nothing(a: Any, b: Any, c: Any, out: Any) -> None:
    """Takes what gemm_bias takes, does nothing."""


def tiles(name: str, count: int) -> list[Tile]:
    return [Tile(f"{name}[{index}]", SHAPE, persistent=True) for index in range(count)]


def record(fixed: Sequence[Tile], third: Sequence[Tile], outputs: Sequence[Tile], access: str) -> Program:
    """One operation for each tile of `third`: two fixed inputs, that tile, one of the outputs."""
    program = Program("empty")
    for index, tile in enumerate(third):
        a, b = fixed[index % len(fixed)], fixed[(index + 1) % len(fixed)]
        program.add(Operation("nothing", (a, b, tile, outputs[index % len(outputs)]), access))
    return program.finish()


class Case:
    """An engine with a cap for 32 tiles, and a program over tiles on it; open with `async with`.

    streamed: whether each operation has a tile of its own, else all tiles are resident. access: of an operation's tiles.
    """

    def __init__(self, operations: int, streamed: bool, access: str) -> None:
        self.fixed, self.outputs = tiles("fixed", 8), tiles("out", OUTPUTS)
        self.moving = tiles("moving", operations if streamed else 8)
        third = [self.moving[index % len(self.moving)] for index in range(operations)]
        self.program = record(self.fixed, third, self.outputs, access)
        standing = [*self.fixed, *self.outputs, *self.moving]
        self.demand = demand_of([self.program], standing)
        room = len(self.fixed) + OUTPUTS + 8
        self.engine = Engine(device="emulated", device_memory=room * align(self.fixed[0].nbytes))
        self.engine.kernels["nothing"] = nothing
        self.loaded = self.downloaded = 0.0

    async def __aenter__(self) -> Self:
        zeros = np.zeros(SHAPE, np.float32)
        await self.engine.__aenter__()
        await self.engine.reserve(self.demand)
        await self.engine.store((tile, zeros) for tile in (*self.fixed, *self.outputs, *self.moving))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.engine.__aexit__(*error)

    async def side(self) -> float:
        """Microseconds an operation."""
        before = self.engine.statistics()
        seconds = await self.engine.call(self._run())
        after, count = self.engine.statistics(), len(self.program)
        nbytes = self.fixed[0].nbytes
        self.loaded = (after.uploaded_bytes - before.uploaded_bytes) / nbytes / count
        self.downloaded = (after.downloaded_bytes - before.downloaded_bytes) / nbytes / count
        return seconds / count * 1e6

    async def _run(self) -> float:
        async with self.engine.exclusive():
            start = time.perf_counter()
            await (await self.engine.start(self.program, self.demand, {})).finish()
            return time.perf_counter() - start


async def resident_overhead_us(operations: int = 4000, rounds: int = 5) -> float:
    """Microseconds an operation with all tiles resident."""
    async with Case(operations, *CASES[RESIDENT]) as case:
        await case.side()
        return (await alternate({RESIDENT: case.side}, rounds))[RESIDENT]


@asynccontextmanager
async def running(operations: int) -> AsyncIterator[dict[str, Case]]:
    """All cases, open."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(Case(operations, *how)) for name, how in CASES.items()}


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """The sides that a process of --against measures."""
    async with running(options.operations) as cases:
        yield {name: case.side for name, case in cases.items()}


async def main() -> None:
    options = arguments(__doc__, {"starts": 12, "rounds": 18}, rounds=7, operations=4000)
    configuration = {
        "operations a run": options.operations,
        "tiles": f"{SHAPE[0]} x {SHAPE[1]} float32, {8 + OUTPUTS + 8} slots, prefetch 2",
    }
    if options.against:
        bounds = {name: Bound(5, percent=True) for name in CASES} | {RESIDENT: Bound(1.0)}
        await compare("bench_overhead", __doc__, options, "us", bounds, configuration)
        return
    async with running(options.operations) as cases:
        sides = {name: case.side for name, case in cases.items()}
        await alternate(sides, 1)
        found = await alternate(sides, options.rounds)
    table = Table("one empty operation", ("case", "us", "loads", "write-backs", "target"))
    for name, value in found.items():
        bound = 10 if name == RESIDENT else 40
        table.rows.append((name, value, cases[name].loaded, cases[name].downloaded, target(value, bound, above=False)))
    configuration["repeats"] = f"median of {options.rounds} runs, cases in turn"
    publish("bench_overhead", __doc__, configuration, [table], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
