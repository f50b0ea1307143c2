"""Validations on an engine of several devices: one loss however many share the rows, and the planned bytes.

The steps between validations have the bits of one device, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import GPT2, Trainer, evaluate
from asynctile.layers.model import model_state_of
from asynctile.measure.simulate import simulate
from asynctile.share import runtime_of
from tests.laws import covering, law
from tests.layers.shapes import LIGHT, Shape
from tests.layers.test_devices import RUNS, emulated, lanes_of
from tests.layers.test_replicas_trained import BATCHES, REPLICAS, SHAPE, STATES
from tests.layers.training import OPTIMIZER, Tensors, assert_same_tensors, batches_of, floor_of, lively

#: Three groups of two whole sequences; four sequences, each cut in two.
SHAPES = {"whole sequences": LIGHT["several sequences in a tile"], "sequences cut": SHAPE}
#: Losses of steps, those of validations, the bytes up and down of each step, and the weights.
Story = tuple[list[float], list[float], list[tuple[int, int]], Tensors]
_alone: dict[Shape, tuple[Any, ...]] = {}
_story: list[Story] = []


async def computed(model: GPT2, shape: Shape) -> tuple[Any, ...]:
    """Return results of forward passes: twice those of whole batches, then those of a batch of one sequence."""
    whole, (tokens, targets) = batches_of(shape, 2), shape.batch_of_tokens(3)
    batches = [*whole, (tokens[:1], targets[:1])]
    losses = [await model.loss(*batch) for batch in [*whole, *batches]]
    logits = [(await model.logits(tokens)).tobytes() for tokens, _ in batches]
    return losses, (await evaluate(model, batches)).loss, logits


async def computed_alone(shape: Shape) -> tuple[Any, ...]:
    """Return the results on one device that holds everything."""
    if shape not in _alone:
        async with Engine("cpu") as engine:
            _alone[shape] = await computed(await lively(engine, shape), shape)
    return _alone[shape]


@pytest.mark.parametrize(
    ("devices", "cap", "shape", "prepare"), covering([2, 3, 4, 1], ["tight", "roomy", "none"], SHAPES, RUNS, few=2)
)
async def test_no_number_of_devices_changes_a_loss_or_a_logit(devices: int, cap: str, shape: Shape, prepare: Any) -> None:
    caps = {"tight": await floor_of(shape), "roomy": shape.config.states_nbytes // 4, "none": None}
    async with Engine(emulated(devices), device_memory=caps[cap]) as engine:
        prepare(engine)
        assert await computed(await lively(engine, shape), shape) == await computed_alone(shape)
        assert engine.statistics().device_peak_bytes <= (caps[cap] or STATES * 10)


@pytest.mark.parametrize(("devices", "prepare"), covering([2, 3, 4], RUNS, few=2))
async def test_no_spill_folder_below_several_devices_changes_a_loss_or_a_logit(
    devices: int, prepare: Any, tmp_path: Path
) -> None:
    weights = STATES // 3
    async with Engine(emulated(devices), device_memory=await floor_of(SHAPE), host_memory=weights, spill=tmp_path) as engine:
        prepare(engine)
        assert await computed(await lively(engine, SHAPE), SHAPE) == await computed_alone(SHAPE)
        assert engine.statistics().spill_read_bytes > 0


@pytest.mark.parametrize(("batch", "devices"), [(1, 1), (2, 2), (3, 3), (4, 3)])
async def test_a_batch_with_fewer_groups_of_rows_than_devices_uses_fewer_devices(batch: int, devices: int) -> None:
    async with Engine("emulated*3") as engine:
        state = model_state_of(await lively(engine, SHAPE))
        program = await runtime_of(engine).call(state.forward("loss", state.tiling.rows(batch, SHAPE.length)))
        assert program.devices == devices


async def test_one_device_runs_the_program_that_was_recorded_without_devices() -> None:
    async with Engine("emulated") as engine:
        state = model_state_of(await lively(engine, SHAPE))
        rows = state.tiling.rows(SHAPE.batch, SHAPE.length)
        assert await runtime_of(engine).call(state.forward("loss", rows)) is state.program("loss", rows)


@pytest.mark.parametrize(("devices", "share"), [(2, 0.4), (3, None), law(4, 0.3), law(1, 0.3), law(2, 0.3), law(3, 0.35)])
async def test_every_validation_after_the_first_moves_the_planned_bytes(devices: int, share: float | None) -> None:
    async with Engine(emulated(devices), device_memory=share and int(share * STATES)) as engine:
        model = await lively(engine, SHAPE)
        state, runtime = model_state_of(model), runtime_of(engine)
        program = await runtime.call(state.forward("loss", state.tiling.rows(SHAPE.batch, SHAPE.length)))
        moved = []
        for batch in batches_of(SHAPE, 4):
            before = engine.statistics()
            await model.loss(*batch)
            now = engine.statistics()
            moved.append((now.uploaded_bytes - before.uploaded_bytes, now.downloaded_bytes - before.downloaded_bytes))
        plan = simulate(program, list(state.standing()), device_memory=runtime.device_cap, rates=runtime.tiers.rates)
        assert moved[1:] == [(plan.uploaded_nbytes, plan.downloaded_nbytes)] * 3
        assert engine.statistics().device_peak_bytes == plan.device_peak_nbytes


async def story_of(engine: Engine, update: str) -> Story:
    """Train with no validation, a whole one and one of a sequence before the steps, in turns, four times over."""
    trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS, update=update)
    steps, validations, moved = [], [], []
    for batch in batches_of(SHAPE, 4):
        for sequences in (0, SHAPE.batch, 1):
            if sequences:
                validations.append(await trainer.model.loss(*(part[:sequences] for part in BATCHES[0])))
            report = await trainer.step(*batch)
            steps.append(report.loss)
            moved.append((report.uploaded_bytes, report.downloaded_bytes))
    return steps, validations, moved, await trainer.model.state_dict()


@pytest.mark.parametrize(
    ("devices", "share", "update", "prepare"), covering([2, 3, 4], [0.3, 0.5, None], ["device", "host", "auto"], RUNS, few=1)
)
async def test_a_training_with_validations_between_has_the_bits_of_one_device_and_repeats_its_bytes(
    devices: int, share: float | None, update: str, prepare: Any
) -> None:
    if not _story:
        async with Engine("cpu") as engine:
            _story.append(await story_of(engine, "device"))
    async with Engine(emulated(devices), device_memory=share and int(share * STATES)) as engine:
        prepare(engine)
        steps, validations, moved, weights = await story_of(engine, update)
    assert (steps, validations) == _story[0][:2]
    assert_same_tensors(weights, _story[0][3])
    assert moved[3:6] == moved[6:9] == moved[9:12]


@pytest.mark.parametrize("prepare", [RUNS["played"], law(RUNS["by coroutines"])], ids=RUNS)
async def test_a_trace_shows_every_device_in_a_validation(prepare: Any, tmp_path: Path) -> None:
    async with Engine("emulated*3", device_memory=STATES // 2) as engine:
        prepare(engine)
        model = await lively(engine, SHAPE)
        await model.loss(*BATCHES[0])
        engine.start_trace(tmp_path / "t.json")
        await model.loss(*BATCHES[1])
        engine.stop_trace()
    assert {f"{lane}:{device}" for lane in ("compute", "upload") for device in (0, 1, 2)} <= lanes_of(tmp_path / "t.json")
