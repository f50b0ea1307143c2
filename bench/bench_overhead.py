"""What does the engine itself cost per operation?

    python bench/bench_overhead.py [--rounds 7] [--operations 4000] [--write]

Microseconds per operation whose kernel does nothing, with three inputs and one output. The operation takes the same path as
every other: an Operation in a Program, reservation, events and streams, in the capped arena of the emulated device with an
unlimited link. Cases: all tiles resident, and one tile loaded and one evicted per operation, clean or dirty. Each case runs by
coroutines (targets: at most 10 us resident, 40 with moves), and played, which starts with a program's second run in a row (0.5
and 1.0). The table also gives the CPU time of all threads per operation, and how long it takes until a program is played: the
second run minus a later one, of fresh programs. One row is for operations outside any program: the caller's loop awaits
`Runtime.launch` of one after another, with all tiles resident (no target).

    python bench/bench_overhead.py --against TREE [--starts 12] [--rounds 18]

The same for another commit's package and this one in turn (bench/against.py); a commit that cannot play runs by coroutines.
Targets by coroutines: all resident at most 1 us more, with moves at most 5% more.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import numpy as np
from against import compare
from common import Side, Table, alternate, arguments, in_turn, publish, target
from numba import njit, types
from paired import Bound

from asynctile import Engine
from asynctile.program.needs import demand_of
from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.share import runtime_of
from asynctile.storage.demand import align
from asynctile.storage.tile import Tile

SHAPE = (16, 16)
OUTPUTS = 16
TILE = types.float32[:, ::1]
RESIDENT = "all resident"
BY_HAND = "all resident, launched by hand"
#: Per case: whether every operation loads one tile and evicts one, and how it accesses its tiles.
CASES = {
    RESIDENT: (False, "rrru"),
    "one load and one clean eviction each": (True, "rrru"),
    "one load and one write-back each": (True, "rruu"),
}
#: Runs per measurement, without and with playing: a single played run is too short for the clock.
RUNS = {False: 1, True: 10}
#: The most microseconds, by whether programs are played and whether tiles move.
MOST = {(False, False): 10.0, (False, True): 40.0, (True, False): 0.5, (True, True): 1.0}


@njit([types.void(TILE, TILE, TILE, TILE)], nogil=True)
def nothing(a: Any, b: Any, c: Any, out: Any) -> None:
    """Take the arguments of gemm_bias and do nothing."""


def tiles(name: str, count: int) -> list[Tile]:
    return [Tile(f"{name}[{index}]", SHAPE, persistent=True) for index in range(count)]


def record(fixed: Sequence[Tile], third: Sequence[Tile], outputs: Sequence[Tile], access: str) -> Program:
    """Record one operation for each tile of `third`: two fixed inputs, that tile, and one of the outputs."""
    program = Program("empty")
    for index, tile in enumerate(third):
        a, b = fixed[index % len(fixed)], fixed[(index + 1) % len(fixed)]
        program.add(Operation("nothing", (a, b, tile, outputs[index % len(outputs)]), access))
    return program.finish()


class Case:
    """An engine with a cap for 32 tiles, and a program over tiles on it; open with `async with`.

    streamed: each operation has a tile of its own; otherwise all tiles are resident. access: how an operation accesses its
    tiles. played: whether the engine may play the program. can_play: whether it is able to. most: the target in microseconds
    per operation. cpu_us: CPU time of all threads per operation, one value per measurement of `side`.
    """

    def __init__(self, operations: int, streamed: bool, access: str, *, played: bool = True) -> None:
        self.streamed, self.played, self._access = streamed, played, access
        self.fixed, self.outputs = tiles("fixed", 8), tiles("out", OUTPUTS)
        self.moving = tiles("moving", operations if streamed else 8)
        self._third = [self.moving[index % len(self.moving)] for index in range(operations)]
        self.renew()
        room = len(self.fixed) + OUTPUTS + 8
        self.engine = Engine(device="emulated", device_memory=room * align(self.fixed[0].nbytes))
        self.can_play = False
        self.most: float | None = MOST[played, streamed]
        self.cpu_us: list[float] = []
        self.loaded = self.downloaded = 0.0

    async def __aenter__(self) -> Self:
        zeros = np.zeros(SHAPE, np.float32)
        await self.engine.__aenter__()
        self.can_play = hasattr(self.engine, "plays")  # an older commit may be measured
        if self.can_play:
            self.engine.plays = self.played
        self.runtime = runtime_of(self.engine)
        self.runtime.device.kernels["nothing"] = nothing
        await self.runtime.reserve(self.demand)
        await self.runtime.store((tile, zeros) for tile in (*self.fixed, *self.outputs, *self.moving))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.engine.__aexit__(*error)

    def renew(self) -> None:
        """Record the same operations in another program, and use that from now on."""
        self.program = record(self.fixed, self._third, self.outputs, self._access)
        self.demand = demand_of([self.program], [*self.fixed, *self.outputs, *self.moving])

    async def side(self) -> float:
        """Return microseconds per operation."""
        before, used, runs = self.engine.statistics(), time.process_time(), RUNS[self.can_play and self.played]
        seconds = await self._seconds(runs)
        after, count = self.engine.statistics(), len(self.program) * runs
        nbytes = self.fixed[0].nbytes
        self.cpu_us.append((time.process_time() - used) / count * 1e6)
        self.loaded = (after.uploaded_bytes - before.uploaded_bytes) / nbytes / count
        self.downloaded = (after.downloaded_bytes - before.downloaded_bytes) / nbytes / count
        return seconds / count * 1e6

    async def until_played_ms(self) -> float:
        """Return the milliseconds that the second run of a fresh program takes beyond a later run, which prepares nothing."""
        self.renew()
        _, second, *later = [await self.runtime.call(self._run(1)) for _ in range(5)]
        return (second - statistics.median(later)) * 1e3

    async def _seconds(self, times: int) -> float:
        """Return the seconds of `times` runs."""
        return await self.runtime.call(self._run(times))

    async def _run(self, times: int) -> float:
        async with self.runtime.exclusive():
            start = time.perf_counter()
            for _ in range(times):
                await (await self.runtime.start(self.program, self.demand, {})).finish()
            return time.perf_counter() - start


class ByHand(Case):
    """The same operations with all tiles resident, outside any program."""

    def __init__(self, operations: int) -> None:
        super().__init__(operations, *CASES[RESIDENT], played=False)
        self.most = None

    async def _seconds(self, times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            for operation in self.program.operations():
                await self.runtime.launch(operation)
            await self.runtime.synchronize()
        return time.perf_counter() - start


async def resident_overhead_us(operations: int = 4000, rounds: int = 5) -> float:
    """Return microseconds per operation with all tiles resident."""
    async with Case(operations, *CASES[RESIDENT]) as case:
        await case.side()
        return (await alternate({RESIDENT: case.side}, rounds))[RESIDENT]


@asynccontextmanager
async def running(operations: int) -> AsyncIterator[dict[str, Case]]:
    """Open all cases."""
    async with AsyncExitStack() as stack:
        found = {}
        for played in (False, True):
            for name, how in CASES.items():
                case = await stack.enter_async_context(Case(operations, *how, played=played))
                found[f"{name}, played" if played else name] = case
        found[BY_HAND] = await stack.enter_async_context(ByHand(operations))
        yield found


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[dict[str, Side]]:
    """Yield the sides that a process of --against measures."""
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
        cases = {name: case for name, case in cases.items() if case.can_play or not case.played}
        sides = {name: case.side for name, case in cases.items()}
        making = {name: case.until_played_ms for name, case in cases.items() if case.played}
        first = await in_turn(making, 1) if making else {}  # includes the work that a process does once
        await alternate(sides, 1)
        for case in cases.values():
            case.cpu_us = []
        found = await alternate(sides, options.rounds)
        made = await alternate(making, options.rounds) if making else {}
    table = Table("one empty operation", ("case", "us", "CPU us", "loads", "write-backs", "target"))
    for name, value in found.items():
        case, cpu_us = cases[name], statistics.median(cases[name].cpu_us)
        goal = case.most and target(value, case.most, above=False)
        table.rows.append((name, value, cpu_us, case.loaded, case.downloaded, goal))
    begun = Table("until a program is played", ("case", "ms", "us an operation", "ms, first in the process"))
    begun.rows = [(name, value, value / options.operations * 1e3, first[name][0]) for name, value in made.items()]
    configuration["repeats"] = f"median of {options.rounds} rounds, cases in turn; {RUNS[True]} runs a round where played"
    publish("bench_overhead", __doc__, configuration, [table, *([begun] if begun.rows else [])], write=options.write)


if __name__ == "__main__":
    asyncio.run(main())
