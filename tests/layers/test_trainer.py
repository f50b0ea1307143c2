"""A trainer: its checkpoints, gradients, reports and settings, several on one model or engine, and the end of their model.

test_step_failures.py and test_step_cancellations.py disturb its steps, test_runs.py tests runs over batches. test_equal_bits.py
tests that results do not depend on budgets, tests/reference that they are right.
"""

from __future__ import annotations

import asyncio
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import DeviceError, Engine, TornModelError
from asynctile.layers import GPT2, AdamW, Trainer
from asynctile.layers.model import model_state_of
from tests.layers.disturbances import BATCHES, DEFAULTS, trainer_on, uninterrupted
from tests.layers.shapes import SHAPES
from tests.layers.training import OPTIMIZER, SHORTER, assert_same_tensors, batches_of, floor_of, lively, states_of


async def test_a_checkpoint_is_a_model_folder_too_and_replaces_an_older_one(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        await trainer.save(tmp_path / "deep" / "run")
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "deep" / "run")
        model = await GPT2.from_pretrained(engine, tmp_path / "deep" / "run")
        assert_same_tensors(await model.state_dict(), await trainer.model.state_dict())
        again = await Trainer.load(engine, str(tmp_path / "deep" / "run"))
        assert again.step_count == 1
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["run"]


async def test_a_checkpoint_of_other_libraries_warns(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await (await trainer_on(engine)).save(tmp_path / "c")
        state = json.loads((tmp_path / "c" / "trainer.json").read_text())
        state["surroundings"]["numpy"] = "0.1"
        (tmp_path / "c" / "trainer.json").write_text(json.dumps(state))
        (tmp_path / "c" / "checksums.json").unlink()
        with pytest.warns(UserWarning, match=r"numpy '0\.1' -> "):
            await Trainer.load(engine, tmp_path / "c")


async def test_computing_gradients_changes_nothing(options: dict[str, Any]) -> None:
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine)
        await trainer.step(*BATCHES[0])
        before = await states_of(trainer)
        one = await trainer.gradients(*BATCHES[1])
        assert_same_tensors(one, await trainer.gradients(*BATCHES[1]))
        assert one.keys() == model_state_of(trainer.model).parameters.keys()
        assert_same_tensors(await states_of(trainer), before)
        report = await trainer.step(*BATCHES[1])
        norm = math.sqrt(sum(np.square(value, dtype=np.float64).sum() for value in one.values()))
        assert report.grad_norm == pytest.approx(norm, rel=1e-12)
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(2))


async def test_another_trainer_of_a_model_continues_with_its_moments_and_its_step_count(options: dict[str, Any]) -> None:
    async with Engine(**options) as engine:
        first = await trainer_on(engine)
        await first.step(*BATCHES[0])
        second = Trainer(first.model, OPTIMIZER, micro_batches=SHORTER.micro_batches, **DEFAULTS)
        assert (second.step_count, second.last_report) == (1, None)
        await model_state_of(second.model).prepare_moments()
        for trainer, batch in zip((second, first), BATCHES[1:3], strict=True):
            await trainer.step(*batch)
        assert (first.step_count, second.step_count) == (3, 3)
        assert first.last_report is not None and second.last_report is not None
        assert (first.last_report.step, second.last_report.step) == (3, 2)
        found = await states_of(second)
    assert_same_tensors(found, await uninterrupted(3))


async def test_two_trainers_share_an_engine(options: dict[str, Any]) -> None:
    """Each gets its results as if alone, although their steps and other work take turns."""
    small = SHAPES["several sequences in a tile"]
    async with Engine("cpu") as engine:
        alone = Trainer(await lively(engine, small), OPTIMIZER, micro_batches=2)
        for batch in batches_of(small, 3):
            await alone.step(*batch)
        expected = await states_of(alone)
    if "device_memory" in options:
        options = options | {"device_memory": await floor_of(small)}
    async with Engine(**options) as engine:
        one = await trainer_on(engine)
        other = Trainer(await lively(engine, small), OPTIMIZER, micro_batches=2)

        async def train(trainer: Trainer, batches: Any) -> None:
            async for _ in trainer.run(batches):
                await trainer.model.loss(*batches[0])

        async with asyncio.TaskGroup() as group:
            group.create_task(train(one, BATCHES[:3]))
            group.create_task(train(other, batches_of(small, 3)))
        found, theirs = await states_of(one), await states_of(other)
    assert_same_tensors(found, await uninterrupted(3))
    assert_same_tensors(theirs, expected)


async def test_a_released_model_gives_its_memory_back_and_is_refused() -> None:
    async with Engine("cpu") as engine:
        for _ in range(2):
            trainer = await trainer_on(engine)
            await trainer.step(*BATCHES[0])
            peak = engine.statistics().host_peak_bytes
            await trainer.model.release()
            with pytest.raises(TornModelError, match="released"):
                await trainer.step(*BATCHES[0])
        assert engine.statistics().host_peak_bytes == peak


async def test_a_report_says_what_happened() -> None:
    cap = SHORTER.config.states_nbytes // 4
    async with Engine("emulated", device_memory=cap) as engine:
        trainer = await trainer_on(engine)
        reports = [report async for report in trainer.run([*BATCHES[:3], BATCHES[0]])]
        statistics = engine.statistics()
    for number, (_, targets) in enumerate([*BATCHES[:3], BATCHES[0]], 1):
        report = reports[number - 1]
        assert (report.step, report.tokens, report.skipped) == (number, np.count_nonzero(targets != -100), False)
        assert report.lr == OPTIMIZER.rate(number)
        assert report.tokens_per_s == pytest.approx(SHORTER.batch * SHORTER.length / report.step_s)
        assert 0 < report.device_peak_bytes <= cap
        assert report.uploaded_bytes > 0
        assert report.downloaded_bytes > 0
        assert report.stall_s >= 0
    assert sum(report.uploaded_bytes for report in reports) == statistics.uploaded_bytes
    # The first step finds the device empty. The second loads the tiles to where all played steps begin.
    assert reports[2].uploaded_bytes == reports[3].uploaded_bytes
    assert [report.played for report in reports] == [False, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"clip_norm": 0}, "clip_norm is 0.*above 0"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0.*above 0"),
        ({"clip_norm": float("nan")}, "clip_norm is nan.*above 0"),
        ({"clip_norm": "1"}, "clip_norm is '1'.*above 0"),
        ({"micro_batches": 0}, "micro_batches is 0.*at least 1"),
        ({"micro_batches": 1.5}, "micro_batches is 1.5.*at least 1"),
        ({"micro_batches": True}, "micro_batches is True.*at least 1"),
        ({"replicas": 0}, "replicas is 0, expected a power of two"),
        ({"replicas": 3}, "replicas is 3, expected a power of two"),
        ({"replicas": 2.0}, "replicas is 2.0, expected a power of two"),
        ({"replicas": "4"}, "replicas is '4', expected a power of two"),
        ({"replicas": True}, "replicas is True, expected a power of two"),
        ({"recompute": "yes"}, "recompute is 'yes', expected True, False or 'auto'"),
        ({"recompute": None}, "recompute is None, expected"),
        ({"recompute": 1}, "recompute is 1, expected"),
    ],
)
async def test_wrong_settings_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    async with Engine("cpu") as engine:
        model = await GPT2.create(engine, SHORTER.config, tile=SHORTER.tile)
        with pytest.raises(ValueError, match=sentence):
            Trainer(model, AdamW(), **arguments)


async def test_work_on_a_closed_engine_is_refused() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeviceError, match="make a new Engine to go on"):
            await trainer.step(*BATCHES[0])
