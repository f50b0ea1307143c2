"""Steps that are played over a spill folder: their bits, their bytes, and what a disk that fails leaves of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import AdamW, Trainer
from asynctile.layers.report import StepReport
from tests.layers.shapes import Shape
from tests.layers.training import SMALL, Tensors, assert_same_tensors, lively, moments_of

OPTIMIZER = AdamW(lr=1e-2)
#: Caps by shares of the states.
CASES = {
    "cpu": ("cpu", {"host_memory": 1.5}, {}),
    "cpu, kept": ("cpu", {"host_memory": 1.5}, {"recompute": False}),
    "cpu, inputs in the file": ("cpu", {"host_memory": 0.85}, {}),
    "cpu, clipped": ("cpu", {"host_memory": 1.2}, {"clip_norm": 0.1}),
    "emulated": ("emulated", {"device_memory": 0.3, "host_memory": 1.5}, {}),
    "emulated, one slot of each size in RAM": ("emulated", {"device_memory": 0.3, "host_memory": 0.15}, {}),
    "emulated, most on the device": ("emulated", {"device_memory": 1.2, "host_memory": 0.6}, {}),
    "emulated, clipped": ("emulated", {"device_memory": 0.3, "host_memory": 1.5}, {"clip_norm": 0.1}),
    "emulated, updated in RAM": ("emulated", {"device_memory": 0.3, "host_memory": 1.0}, {"update": "host"}),
    "emulated, clipped, updated in RAM": (
        "emulated", {"device_memory": 0.3, "host_memory": 1.0}, {"clip_norm": 0.1, "update": "host"},
    ),
}  # fmt: skip


def engine_of(case: str, folder: Path, shape: Shape = SMALL, **more: Any) -> Engine:
    device, caps, _ = CASES[case]
    sizes = {name: int(share * shape.config.states_nbytes) for name, share in caps.items()}
    return Engine(device, spill=folder, **sizes, **more)


async def trainer_of(case: str, engine: Engine, shape: Shape = SMALL) -> Trainer:
    options = {"update": "device", **CASES[case][2]}
    return Trainer(await lively(engine, shape), OPTIMIZER, micro_batches=shape.micro_batches, **options)


async def states_of(trainer: Trainer) -> Tensors:
    return {**await trainer.model.state_dict(), **await moments_of(trainer)}


async def trained(
    case: str, folder: Path, plays: bool, shape: Shape = SMALL, steps: int = 4
) -> tuple[list[StepReport], Tensors]:
    async with engine_of(case, folder, shape) as engine:
        engine.plays = plays
        trainer = await trainer_of(case, engine, shape)
        reports = [await trainer.step(*shape.batch_of_tokens(seed)) for seed in range(steps)]
        return reports, await states_of(trainer)


@pytest.mark.parametrize("case", CASES)
async def test_played_steps_over_a_file_have_the_bits_of_coroutines(case: str, tmp_path: Path) -> None:
    by_coroutines, expected = await trained(case, tmp_path, plays=False)
    played, found = await trained(case, tmp_path, plays=True)
    assert [report.played for report in played] == [False, True, True, True]
    assert [(report.loss, report.grad_norm) for report in played] == [(r.loss, r.grad_norm) for r in by_coroutines]
    assert_same_tensors(found, expected)
    moved = [(r.spill_read_bytes, r.spill_written_bytes, r.uploaded_bytes, r.downloaded_bytes) for r in played[2:]]
    assert moved[0] == moved[1] and moved[0][0] > 0 and moved[0][1] > 0
