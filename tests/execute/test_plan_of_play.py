"""A plan says to the byte what each played step moves."""

from __future__ import annotations

from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import GPT2, Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from tests.laws import law
from tests.layers.training import OPTIMIZER, SMALL, batches_of

STATES = SMALL.config.states_nbytes


@pytest.mark.parametrize(("share", "options"), [
    (0.12, {}), (0.3, {"clip_norm": 0.1}), (0.3, {"recompute": False}), (2.0, {}),
    law(0.3, {}), law(0.12, {"clip_norm": 0.1}), law(2.0, {"clip_norm": 0.1}), law(0.12, {"recompute": False}),
    law(2.0, {"recompute": False}),
])  # fmt: skip
async def test_every_played_step_moves_the_planned_bytes(share: float, options: dict[str, Any]) -> None:
    cap = int(share * STATES)
    plan = plan_step(SMALL.config, SMALL.work(update="device", **options), Machine(device="emulated", device_memory=cap))
    async with Engine("emulated", device_memory=cap) as engine:
        trainer = Trainer(await GPT2.create(engine, SMALL.config, tile=SMALL.tile), OPTIMIZER,
                          micro_batches=SMALL.micro_batches, update="device", **options)  # fmt: skip
        reports = [report async for report in trainer.run(batches_of(SMALL, 4))]
    assert [report.played for report in reports] == [False, True, True, True]
    for report in reports[2:]:  # the second also loads the tiles to where the schedule begins
        assert (report.uploaded_bytes, report.downloaded_bytes) == (plan.uploaded_bytes, plan.downloaded_bytes)
    assert reports[-1].device_peak_bytes <= cap
