"""Steps under a cap on a GPU whose driver and kernels run on the CPU: they follow a packing.

tests/layers/test_cuda.py tests their bits, tests/execute/test_packed.py packings elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from asynctile.share import runtime_of
from tests.layers.training import OPTIMIZER, SMALL, Tensors, assert_same_tensors, batches_of, lively, moments_of

CAP = SMALL.config.states_nbytes // 3
BATCHES = batches_of(SMALL, 5)

pytestmark = pytest.mark.usefixtures("soft_gpu")


async def trained(engine: Engine) -> Tensors:
    trainer = Trainer(await lively(engine, SMALL), OPTIMIZER, micro_batches=SMALL.micro_batches, update="device")
    for batch in BATCHES:
        await trainer.step(*batch)
    return await trainer.model.state_dict() | await moments_of(trainer)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"update": "host"}], ids=str)
async def test_every_step_from_the_third_on_moves_the_planned_bytes(options: dict[str, Any]) -> None:
    options = {"update": "device", **options}
    plan = plan_step(SMALL.config, SMALL.work(**options), Machine(device="cuda:0", device_memory=CAP))
    assert plan.comes_and_goes
    async with Engine("cuda:0", device_memory=CAP) as engine:
        trainer = Trainer(await lively(engine, SMALL), OPTIMIZER, micro_batches=SMALL.micro_batches, **options)
        for number, batch in enumerate(BATCHES):
            report = await trainer.step(*batch)
            assert runtime_of(engine).tiers.top.arena.packed
            assert report.played is (number > 0)
            if number > 1:
                assert (report.uploaded_bytes, report.downloaded_bytes) == (plan.uploaded_bytes, plan.downloaded_bytes)
        assert report.device_peak_bytes <= CAP


@pytest.mark.parametrize("update", ["device", "host"])  # with the latter no tile is on the device when a step begins
async def test_a_cancelled_packed_step_leaves_the_model_unchanged_or_counts(update: str) -> None:
    async with Engine("cuda:0", device_memory=CAP) as engine:
        trainer = Trainer(await lively(engine, SMALL), OPTIMIZER, micro_batches=SMALL.micro_batches, update=update)
        for batch in BATCHES[:2]:
            await trainer.step(*batch)
        for turns in (2, 9, 40):
            before = trainer.step_count
            step = asyncio.create_task(trainer.step(*BATCHES[before]))
            for _ in range(turns):
                await runtime_of(engine).call(asyncio.sleep(0))
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            assert trainer.step_count in (before, before + 1)
        for batch in BATCHES[trainer.step_count :]:
            await trainer.step(*batch)
        found = await trainer.model.state_dict() | await moments_of(trainer)
    async with Engine("cuda:0") as engine:
        assert_same_tensors(found, await trained(engine))
