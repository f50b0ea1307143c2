"""What does the engine itself cost an operation?

    python bench/bench_overhead.py [--rounds 7] [--operations 4000] [--write]

Microseconds per operation whose kernel does nothing, with three inputs and one output, by the path of every other one: an
Operation in a Program, reservation, events and streams, in the capped arena of the emulated device with an unlimited link.
With all tiles resident (target: at most 10), and when every operation loads one tile and evicts one (at most 40), clean or
dirty. Beside it the tile coroutine by itself, `await lane.launch(...)` from a coroutine on the device's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from common import Table, alternate, arguments, publish, target
from numba import njit, types

from asynctile import Engine
from asynctile.program.handle import Handle
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.storage.demand import align

SHAPE = (16, 16)
OUTPUTS = 16
TILE = types.float32[:, ::1]


@njit([types.void(TILE, TILE, TILE, TILE)], nogil=True)
def nothing(a: Any, b: Any, c: Any, out: Any) -> None:
    """Takes what gemm_bias takes, does nothing."""


def tiles(name: str, count: int) -> list[Handle]:
    return [Handle(f"{name}[{index}]", SHAPE, persistent=True) for index in range(count)]


def record(fixed: Sequence[Handle], third: Sequence[Handle], outputs: Sequence[Handle], access: str) -> Program:
    """One operation for each tile of `third`: two fixed inputs, that tile, one of the outputs."""
    program = Program("empty")
    for index, tile in enumerate(third):
        a, b = fixed[index % len(fixed)], fixed[(index + 1) % len(fixed)]
        program.add(Operation("nothing", (a, b, tile, outputs[index % len(outputs)]), access))
    return program.finish()


class Case:
    """An engine with a cap for `slots` tiles, and a program over tiles on it."""

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

    async def open(self) -> None:
        zeros = np.zeros(SHAPE, np.float32)
        await self.engine.__aenter__()
        await self.engine.reserve(self.demand)
        await self.engine.store((tile, zeros) for tile in (*self.fixed, *self.outputs, *self.moving))

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

    def coroutines(self) -> Callable[[], Awaitable[float]]:
        """The same operations, each awaited as a coroutine."""

        async def launch() -> float:
            async with self.engine.exclusive():
                lane, entries = self.engine.tiers.lane, list(self.program.operations())
                start = time.perf_counter()
                for operation in entries:
                    await lane.launch(operation)
                await self.engine.tiers.window.drain()
                return time.perf_counter() - start

        async def side() -> float:
            return await self.engine.call(launch()) / len(self.program) * 1e6

        return side


async def resident_overhead_us(operations: int = 4000, rounds: int = 5) -> float:
    """Microseconds an operation with all tiles resident."""
    case = Case(operations, False, "rrru")
    await case.open()
    try:
        await case.side()
        return (await alternate({"resident": case.side}, rounds))["resident"]
    finally:
        await case.engine.__aexit__(None, None, None)


async def main() -> None:
    options = arguments(__doc__, rounds=7, operations=4000)
    cases = {
        "all resident": Case(options.operations, False, "rrru"),
        "one load and one clean eviction each": Case(options.operations, True, "rrru"),
        "one load and one write-back each": Case(options.operations, True, "rruu"),
    }
    for case in cases.values():
        await case.open()
    sides: dict[str, Callable[[], Awaitable[float]]] = {name: case.side for name, case in cases.items()}
    coroutines = "all resident, await lane.launch()"
    sides[coroutines] = cases["all resident"].coroutines()
    await alternate(sides, 1)
    found = await alternate(sides, options.rounds)
    table = Table("one empty operation", ("case", "us", "loads", "write-backs", "target"))
    for name, value in found.items():
        case = cases.get(name, cases["all resident"])
        bound = 10 if case is cases["all resident"] else 40
        table.rows.append((name, value, case.loaded, case.downloaded, target(value, bound, above=False)))
    for case in reversed(cases.values()):
        await case.engine.__aexit__(None, None, None)
    configuration = {
        "operations a run": options.operations,
        "tiles": f"{SHAPE[0]} x {SHAPE[1]} float32, {8 + OUTPUTS + 8} slots, prefetch 2",
        "repeats": f"median of {options.rounds} runs, cases in turn",
    }
    publish("bench_overhead", __doc__, configuration, [table], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
