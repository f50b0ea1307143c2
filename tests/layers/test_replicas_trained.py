"""Trainings of several replicas on one device: one digest wherever bytes are and however steps run, and after a resume."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.kernels.cpu import KERNELS
from asynctile.layers import Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.model import model_state_of
from asynctile.layers.plan import plan_step
from tests.interpreter import Model
from tests.laws import covering, law
from tests.layers.shapes import shape as make_shape
from tests.layers.training import (
    OPTIMIZER,
    Outcome,
    assert_same_bits,
    assert_same_tensors,
    batches_of,
    floor_of,
    lively,
    moments_of,
    outcome,
)
from tests.settle import HANG_S

REPLICAS, STEPS = 4, 3
#: One sequence a replica, cut in two; one narrow block.
SHAPE = make_shape(20, 2, 35, 24, tile=12, batch=4, length=17, n_inner=25, n_layer=1, replicas=REPLICAS)
STATES = SHAPE.config.states_nbytes
BATCHES = batches_of(SHAPE, STEPS)
_yardsticks: dict[tuple[str, str, float | None], Outcome] = {}


async def trained(device: str, caps: dict[str, Any] | None = None, **options: Any) -> Outcome:
    async with asyncio.timeout(HANG_S):
        return await outcome(SHAPE, steps=STEPS, device=device, engine_options=caps, replicas=REPLICAS, **options)


async def yardstick(device: str = "cpu", precision: str = "fp32", clip_norm: float | None = None) -> Outcome:
    """Return the outcome with everything resident."""
    key = device, precision, clip_norm
    if key not in _yardsticks:
        _yardsticks[key] = await trained(device, {"precision": precision}, clip_norm=clip_norm)
    return _yardsticks[key]


def by_coroutines(engine: Engine) -> None:
    engine.plays = False


@pytest.mark.parametrize(
    ("share", "clip_norm", "prepare"),
    covering(
        ["floor", 0.25, 0.5, 3.0], {"fused": None, "clipped": 0.1}, {"played": lambda _: None, "awaited": by_coroutines}, few=2
    ),
)
async def test_no_cap_changes_a_bit_of_replicas(share: str | float, clip_norm: float | None, prepare: Any) -> None:
    cap = await floor_of(SHAPE) if isinstance(share, str) else int(share * STATES)
    found = await trained("emulated", {"device_memory": cap}, clip_norm=clip_norm, prepare=prepare)
    assert_same_bits(found, await yardstick(clip_norm=clip_norm))
    assert found.device_peak_bytes <= cap
    assert clip_norm is None or min(found.norms) > clip_norm


@pytest.mark.parametrize(("device", "caps", "options"), [
    law("cpu", {"host_memory": 1.2}, {}),
    ("emulated", {"device_memory": 0.3, "host_memory": 0.6}, {"clip_norm": 0.1, "prepare": by_coroutines}),
    law("emulated", {"device_memory": 0.3, "host_memory": 1.2}, {"update": "host", "recompute": False}),
    law("cpu", {"host_memory": 1.2}, {"clip_norm": 0.1, "prepare": by_coroutines}),
    law("emulated", {"device_memory": 0.3, "host_memory": 0.6}, {}),
    law("emulated", {"device_memory": 0.3, "host_memory": 1.2}, {"clip_norm": 0.1, "update": "host"}),
])  # fmt: skip
async def test_no_spill_folder_changes_a_bit_of_replicas(
    device: str, caps: dict[str, float], options: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {name: int(share * STATES) for name, share in caps.items()}
    found = await trained(device, {**sizes, "spill": tmp_path}, **options)
    assert_same_bits(found, await yardstick(clip_norm=options.get("clip_norm")))


@pytest.mark.parametrize(
    ("share", "options", "precision"),
    covering(
        [0.5, None], {"two-phase on the host": {"clip_norm": 0.1, "update": "host"}, "fused": {}}, ["bf16", "fp32"], few=1
    ),
)
@pytest.mark.usefixtures("soft_gpu")
async def test_no_cap_on_a_gpu_changes_a_bit_of_replicas(share: float | None, options: dict[str, Any], precision: str) -> None:
    caps = {"precision": precision, "device_memory": share and max(int(share * STATES), 48 << 10)}
    found = await trained("cuda:0", caps, **options)
    assert_same_bits(found, await yardstick("cuda:0", precision, options.get("clip_norm")))


async def test_the_engine_computes_what_the_interpreter_computes_for_replicas() -> None:
    tokens, targets = BATCHES[0]
    async with Engine("emulated", device_memory=STATES // 2) as engine:
        model = await lively(engine, SHAPE)
        plain = Model.create(SHAPE.parameters(), kernels=KERNELS)
        plain.load(await model.state_dict())
        trainer = Trainer(model, OPTIMIZER, replicas=REPLICAS)
        _, gradients = plain.gradients(tokens, targets, replicas=REPLICAS)
        assert_same_tensors(await trainer.gradients(tokens, targets), gradients)
        report = await trainer.step(tokens, targets)
        assert (report.loss, report.grad_norm) == plain.step(tokens, targets, 1, OPTIMIZER, replicas=REPLICAS)
        assert_same_tensors(await model.state_dict(), plain.state())


@pytest.mark.parametrize("clip_norm", [law(None), 0.1])
async def test_resumed_replicas_have_equal_bits(clip_norm: float | None, tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS, clip_norm=clip_norm)
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c")
    async with Engine("emulated", device_memory=STATES // 3) as engine:
        again = await Trainer.load(engine, tmp_path / "c")
        assert (again.replicas, again.micro_batches) == (REPLICAS, 1)
        for batch in BATCHES[1:]:
            await again.step(*batch)
        expected = await yardstick(clip_norm=clip_norm)
        assert_same_tensors(await again.model.state_dict(), expected.weights)
        assert_same_tensors(await moments_of(again), expected.moments)


async def test_a_checkpoint_older_than_replicas_has_one(tmp_path: Path) -> None:
    state = tmp_path / "c" / "trainer.json"
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        await trainer.save(tmp_path / "c")
        written = json.loads(state.read_text())
        assert (written["format"], written.pop("replicas")) == (4, REPLICAS)
        state.write_text(json.dumps(written | {"format": 3}))
        (tmp_path / "c" / "checksums.json").unlink()
        assert (await Trainer.load(engine, tmp_path / "c")).replicas == 1


async def test_a_trainer_may_change_its_replicas_between_steps_of_a_model() -> None:
    """Each number of replicas has programs of its own, also where they have equally many passes."""
    found = []
    for device in ("cpu", "emulated"):
        async with Engine(device) as engine:
            model = await lively(engine, SHAPE)
            trainers = [Trainer(model, OPTIMIZER, replicas=replicas) for replicas in (1, 4, 2, 1)]
            reports = [await trainer.step(*BATCHES[0]) for trainer in trainers]
            found.append(([report.loss for report in reports], await model.state_dict()))
            state = model_state_of(model)
            rows = [state.tiling.rows(4, 17, 1, replicas).in_passes(4 // replicas) for replicas in (1, 2, 4)]
            assert len({state.program("step", each) for each in rows}) == 3
    assert found[0][0] == found[1][0]
    assert_same_tensors(found[0][1], found[1][1])


@pytest.mark.parametrize(("share", "options"), [
    law(0.15, {}), (0.4, {"clip_norm": 0.1}), law(3.0, {}), law(0.4, {}), law(0.4, {"recompute": False}),
    law(0.15, {"clip_norm": 0.1}),
])  # fmt: skip
async def test_every_played_step_of_replicas_moves_the_planned_bytes(share: float, options: dict[str, Any]) -> None:
    cap = int(share * STATES)
    plan = plan_step(SHAPE.config, SHAPE.work(update="device", **options), Machine(device="emulated", device_memory=cap))
    assert plan.passes % REPLICAS == 0
    async with Engine("emulated", device_memory=cap) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS, update="device", **options)
        before = engine.statistics().operations
        reports = [report async for report in trainer.run(batches_of(SHAPE, 4))]
        assert engine.statistics().operations - before == 4 * plan.operations
    assert [report.played for report in reports] == [False, True, True, True]
    for report in reports[2:]:  # the second also loads the tiles to where the schedule begins
        assert (report.uploaded_bytes, report.downloaded_bytes) == (plan.uploaded_bytes, plan.downloaded_bytes)


async def test_a_batch_that_replicas_do_not_divide_is_refused_before_any_work() -> None:
    tokens, targets = make_shape(20, 2, 35, 24, tile=12, batch=6, length=17).batch_of_tokens()
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=2, micro_batches=2)
        before = engine.statistics().operations
        with pytest.raises(ValueError, match="6 sequences is not divisible by replicas 2 x micro_batches 2") as caught:
            await trainer.step(tokens, targets)
        assert "\n" not in str(caught.value)
        assert engine.statistics().operations == before
