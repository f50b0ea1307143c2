"""A tile program with its tiles and expected results: storing, running and checking it on an engine.

Covers `Workload`, for every scenario that needs no model. writer.py and thrash.py draw programs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asynctile import Engine
from asynctile.cli.stress.finding import expect_bytes
from asynctile.kernels.cpu import KERNELS
from asynctile.loop.thread import under_shield
from asynctile.program.needs import demand_of
from asynctile.program.operation import NO_NUMBER, READ, WRITE, Operation
from asynctile.program.program import Fetch, Program
from asynctile.program.spread import spread
from asynctile.runtime import Runtime
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile

__all__ = ["Outcome", "Workload", "compute"]


@dataclass
class Outcome:
    """The results of a run.

    tiles: persistent ones. outputs: fetched on the way. numbers: reported by operations. played: whether the run was played
    instead of run as coroutines.
    """

    tiles: dict[Tile, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: list[float] = field(default_factory=list)
    played: bool = False

    def expect(self, other: Outcome) -> None:
        """Raise Finding unless `other`, which is right, is bitwise the same."""
        for tile, value in other.tiles.items():
            expect_bytes(f"tile {tile.name}", self.tiles[tile], value)
        for key, value in other.outputs.items():
            expect_bytes(f"output {key}", self.outputs[key], value)
        expect_bytes("numbers reported by operations", np.array(self.numbers), np.array(other.numbers))


class Workload:
    """A finished program with its data.

    values: of every persistent tile before the first run. inputs: the same for each run.
    """

    def __init__(self, program: Program, values: Mapping[Tile, np.ndarray], inputs: Mapping[str, np.ndarray]) -> None:
        self.program = program
        self.values = dict(values)
        self.inputs = dict(inputs)
        self.demand = demand_of([program], self.values)

    def over(self, devices: int, chance: random.Random) -> Workload:
        """Return the same work with every entry of the program on a device drawn at random."""
        if devices == 1:
            return self
        found = [chance.randrange(devices) for _ in self.program.entries]
        return Workload(spread(self.program, found), self.values, self.inputs)

    def interpret(self, tiles: Mapping[Tile, np.ndarray]) -> Outcome:
        """Return the outcome of one run on `tiles`, computed with one array per tile."""
        arrays = {tile: value.copy() for tile, value in tiles.items()}
        arrays |= {tile: self.inputs[name].copy() for name, tile in self.program.inputs.items()}
        outcome = Outcome(numbers=[0.0] * len(self.program.numbers))
        for entry in self.program.entries:
            if isinstance(entry, Operation):
                compute(entry, arrays, outcome.numbers)
            elif isinstance(entry, Fetch):
                outcome.outputs[entry.key] = arrays[entry.tile].copy()
        outcome.tiles = {tile: arrays[tile] for tile in tiles}
        return outcome

    def changed(self) -> set[Tile]:
        """Return the tiles that some operation writes."""
        entries = self.program.entries
        return {tile for entry in entries for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ}

    async def store(self, engine: Engine) -> None:
        """Give every persistent tile its first value."""
        runtime = runtime_of(engine)
        await runtime.reserve(self.demand)
        await runtime.store(self.values.items())

    async def run(self, engine: Engine) -> Outcome:
        """Run once as a program; the outcome has no tiles yet. On an error the run is abandoned, as a model would do."""
        outputs = {entry.key: np.empty(entry.tile.shape, entry.tile.dtype)
                   for entry in self.program.entries if isinstance(entry, Fetch)}
        runtime = runtime_of(engine)
        numbers, played = await runtime.call(self._run(runtime, outputs))
        return Outcome(outputs=outputs, numbers=numbers[: len(self.program.numbers)].tolist(), played=played)

    async def launch(self, engine: Engine) -> Outcome:
        """Run once as independent coroutines, all launched at once; for programs of persistent tiles only."""
        numbers = [np.zeros(1) for _ in self.program.numbers]
        operations = self.program.operations()
        runtime = runtime_of(engine)
        await asyncio.gather(*(runtime.launch(operation, _place_of(operation, numbers)) for operation in operations))
        await runtime.synchronize()
        return Outcome(numbers=[float(number[0]) for number in numbers])

    async def read(self, engine: Engine, outcome: Outcome) -> Outcome:
        """Return `outcome` with the newest bytes of every persistent tile."""
        outcome.tiles = dict(zip(self.values, await runtime_of(engine).read_all(self.values), strict=True))
        return outcome

    async def release(self, engine: Engine) -> None:
        await runtime_of(engine).release(self.values)

    async def _run(self, runtime: Runtime, outputs: dict[str, np.ndarray]) -> tuple[np.ndarray, bool]:
        async with runtime.exclusive():
            run = await runtime.start(self.program, self.demand, self.inputs, outputs)
            try:
                await run.finish()
            except BaseException:
                await under_shield(run.abandon())
                raise
            return run.numbers, run.played


def compute(operation: Operation, arrays: dict[Tile, np.ndarray], numbers: list[float]) -> None:
    """Run one operation's kernel on arrays and put the number that it reports into `numbers`."""
    for tile, how in zip(operation.operands, operation.access, strict=True):
        if how == WRITE and tile not in arrays:
            arrays[tile] = np.empty(tile.shape, tile.dtype)
    number: tuple[Any, ...] = () if operation.number is None else (np.zeros(1),)
    KERNELS[operation.kernel](*(arrays[tile] for tile in operation.operands), *operation.params, *number)
    if number and operation.number not in (None, NO_NUMBER):
        numbers[operation.number] = float(number[0][0])


def _place_of(operation: Operation, numbers: list[np.ndarray]) -> np.ndarray | None:
    return None if operation.number is None else numbers[operation.number]
