"""A schedule run in random orders gives the bits of the engine's own steps, and ends where it began."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.execute.space import space_on
from asynctile.layers import AdamW, Trainer
from asynctile.layers.batch import loss_inputs
from asynctile.layers.model import Model, model_state_of
from asynctile.memory.tiers import Tiers
from asynctile.program.program import Program
from asynctile.schedule.decide import decide, decide_below
from asynctile.schedule.packing import Packing
from asynctile.schedule.schedule import Kind, Schedule
from asynctile.share import runtime_of
from asynctile.storage.tile import Tile
from tests.execute.by_chance import ByChance
from tests.laws import law
from tests.layers.training import NARROW, lively
from tests.schedule.packings import alone, check, drawn

OPTIMIZER = AdamW(lr=1e-2)
CASES = {
    "cpu": ("cpu", {}, {}),
    "all resident": ("emulated", {}, {}),
    "a cap": ("emulated", {"device_memory": 0.25}, {}),
    "a small cap": ("emulated", {"device_memory": 0.12}, {}),
    "a cap, kept": ("emulated", {"device_memory": 0.3}, {"recompute": False}),
    "a cap, clipped": ("emulated", {"device_memory": 0.25}, {"clip_norm": 0.1}),
    "a cap, updated in RAM": ("emulated", {"device_memory": 0.25}, {"update": "host"}),
    "a cap, clipped, updated in RAM": ("emulated", {"device_memory": 0.25}, {"clip_norm": 0.1, "update": "host"}),
}


#: Over a spill folder, by shares of the states.
OVER_A_FILE = {
    "cpu over a file": ("cpu", {"host_memory": 1.5}, {}),
    "cpu, kept": ("cpu", {"host_memory": 1.5}, {"recompute": False}),
    "cpu, inputs in the file": ("cpu", {"host_memory": 1.2}, {}),
    "cpu over a file, clipped": ("cpu", {"host_memory": 1.6}, {"clip_norm": 0.1}),
    "emulated over a file": ("emulated", {"device_memory": 0.3, "host_memory": 1.5}, {}),
    "emulated, one slot of each size in RAM": ("emulated", {"device_memory": 0.3, "host_memory": 0.15}, {}),
    "emulated, most on the device": ("emulated", {"device_memory": 1.2, "host_memory": 0.6}, {}),
    "emulated, clipped": ("emulated", {"device_memory": 0.3, "host_memory": 1.5}, {"clip_norm": 0.1}),
    "emulated, updated in RAM": ("emulated", {"device_memory": 0.3, "host_memory": 1.0}, {"update": "host"}),
    "emulated, clipped, updated in RAM": (
        "emulated", {"device_memory": 0.3, "host_memory": 1.0}, {"clip_norm": 0.1, "update": "host"},
    ),
}  # fmt: skip


async def decided(engine: Engine, trainer: Trainer, shape: Any, seed: int | None = None) -> Schedule:
    """Return the schedule of the trainer's step without moving anything. seed: of the packing to follow; None for slots."""
    model = trainer.model
    kind = "step" if trainer.clip_norm is None else "step_clipped"
    rows = model_state_of(model).tiling.rows(shape.batch, shape.length, shape.micro_batches)

    async def job() -> Schedule | None:
        # only a step itself asks for its program otherwise, and it moves tiles
        program = await trainer._keeping.run(kind, rows, partial(trainer._placed, kind))
        async with runtime_of(engine).exclusive():
            await runtime_of(engine).tiers.caps.cut(model_state_of(model).demand(program))
            space = space_on(runtime_of(engine).tiers, model_state_of(model).demand(program))
            if seed is None:
                return decide(program, space)
            return decide_below(program, space, [alone(a_packing(program, runtime_of(engine).tiers, seed))])

    found = await runtime_of(engine).call(job())
    assert found is not None
    return found


def a_packing(program: Program, tiers: Tiers, seed: int) -> Packing:
    """Draw a valid packing."""
    arena = tiers.top.arena
    assert arena.divided and arena.cap is not None
    chance, over_link = random.Random(seed), tiers.link is not None
    packing = drawn(program, arena.cap, alignment=arena.alignment, over_link=over_link, chance=chance)
    check(packing, over_link=over_link)
    return packing


async def bytes_of(engine: Engine, model: Model) -> dict[Tile, np.ndarray]:
    tiles = list(model_state_of(model).parameters.states())
    return dict(zip(tiles, await runtime_of(engine).read_all(tiles), strict=True))


def put_inputs(chance: ByChance, program: Program, shape: Any, model: Model, seed: int, step: int) -> None:
    tokens, targets = (array.astype(np.int32) for array in shape.batch_of_tokens(seed))
    inputs, _ = loss_inputs(model_state_of(model).tiling.rows(shape.batch, shape.length, shape.micro_batches), tokens, targets)
    for name, value in {**inputs, "hyper": OPTIMIZER.hyper(step)}.items():
        chance.put(program.inputs[name], value)


def total(schedule: Schedule, chance: ByChance, label: str) -> float:
    labelled = zip(schedule.program.numbers, chance.numbers.tolist(), strict=False)
    return sum(number for name, number in labelled if name.startswith(label))


#: Cases in which tiles are loaded and evicted, so that the top tier may be packed.
DIVIDED = [case for case in (*CASES, *OVER_A_FILE) if case not in ("cpu", "all resident", "emulated, most on the device")]


#: In `make test` half of the cases run by slots, the others packed.
BY_SLOTS = [case for case in (*CASES, *OVER_A_FILE) if case not in DIVIDED[1::2]]


@pytest.mark.parametrize("case", [*BY_SLOTS, *map(law, DIVIDED[1::2])])
async def test_a_schedule_gives_the_bits_of_a_run_in_every_order_that_its_edges_allow(case: str, tmp_path: Path) -> None:
    await check_bits(case, tmp_path)


@pytest.mark.parametrize("case", [*DIVIDED[1::2], *map(law, DIVIDED[::2])])
async def test_a_schedule_of_a_packed_step_gives_the_bits_of_a_run_by_any_packing(case: str, tmp_path: Path) -> None:
    await check_bits(case, tmp_path, seed=DIVIDED.index(case))


async def check_bits(case: str, tmp_path: Path, seed: int | None = None) -> None:
    """Compare a schedule of the step with the engine's own steps; it follows a packing if there is a seed."""
    device, caps, options = CASES.get(case) or OVER_A_FILE[case]
    caps = {name: int(share * NARROW.config.states_nbytes) for name, share in caps.items()}
    if case in OVER_A_FILE:
        caps["spill"] = tmp_path
    async with Engine(device, **caps) as engine:
        engine.plays = False
        model = await lively(engine, NARROW)
        trainer = Trainer(model, OPTIMIZER, micro_batches=NARROW.micro_batches, **{"update": "device", **options})
        await trainer.step(*NARROW.batch_of_tokens(0))
        schedule = await decided(engine, trainer, NARROW, seed)
        runtime = runtime_of(engine)
        chance = ByChance(schedule, runtime.device.kernels, None if seed is None else runtime.tiers.top.arena.cap)
        assert any(entry.kind is Kind.TRANSFER for entry in schedule.entries) is (case in OVER_A_FILE)
        chance.fill(await bytes_of(engine, model))
        for step in (1, 2):
            put_inputs(chance, schedule.program, NARROW, model, step, step + 1)

            def look(mark: str, step: int = step) -> None:
                if mark == "update" and trainer.clip_norm is not None:
                    factor = trainer.clip_norm / (math.sqrt(total(schedule, chance, "norm")) + 1e-6)
                    chance.put_at(mark, schedule.program.inputs["hyper"], OPTIMIZER.hyper(step + 1, min(1.0, factor)))

            chance.run(step, look)
            report = await trainer.step(*NARROW.batch_of_tokens(step))
            assert total(schedule, chance, "loss") / (NARROW.batch_of_tokens(step)[1] >= 0).sum() == report.loss
            for tile, value in (await bytes_of(engine, model)).items():
                np.testing.assert_array_equal(chance.value(tile), value, err_msg=tile.name)
