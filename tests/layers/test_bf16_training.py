"""Trainings in bf16 through a whole engine without a GPU: the emulated device with the plain verbs, and tall row tiles.

test_precision.py tests the programs recorded for bf16, test_cuda_replayed.py the law of equal bits.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, Engine
from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.layers.floor import floor_demand
from asynctile.layers.machine import Machine
from asynctile.layers.model import model_state_of
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import plan_step
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.program.grain import COARSE, FINE, Grain
from asynctile.program.needs import demand_of
from asynctile.share import runtime_of
from asynctile.storage.tensors import TensorReader
from tests.inside_engine import device_of, life_of
from tests.interpreter import Model
from tests.layers.training import (
    NARROW,
    OPTIMIZER,
    assert_same_tensors,
    batches_of,
    lively,
    states_of,
)
from tests.verbs import VERBS

GRAIN = Grain(FINE.ladder, tall=2)
#: Sequences of 17 tokens in row tiles of 14, so that they are cut.
SHAPE = dataclasses.replace(NARROW, tile=7)
STATES = NARROW.config.states_nbytes
FLOOR = floor_demand(SHAPE.config, SHAPE.tile, GRAIN, "bf16").floor_nbytes


def bf16_engine(device: str = "emulated", **options: Any) -> Engine:
    """Return an emulated engine that is what it would be on a GPU: its precision, its grain, and kernels for bf16."""
    engine = Engine(device, **options)
    life_of(engine).precision = "bf16"
    device_of(engine).kernels.update(VERBS)
    device_of(engine).grain = GRAIN
    return engine


async def test_the_engine_computes_what_the_interpreter_computes() -> None:
    tokens, targets = SHAPE.batch_of_tokens(1)
    async with bf16_engine() as engine:
        model = await lively(engine, SHAPE)
        plain = Model.create(Parameters(SHAPE.config, Tiling(SHAPE.config, SHAPE.tile, GRAIN), "bf16"))
        plain.load(await model.state_dict())
        trainer = Trainer(model, OPTIMIZER, micro_batches=SHAPE.micro_batches)
        loss, gradients = plain.gradients(tokens, targets, SHAPE.micro_batches)
        assert_same_tensors(await trainer.gradients(tokens, targets), gradients)
        for step in (1, 2):
            report = await trainer.step(tokens, targets)
            assert report.loss == plain.step(tokens, targets, step, OPTIMIZER, micro_batches=SHAPE.micro_batches)[0]
        assert_same_tensors(await model.state_dict(), plain.state())
        assert loss > report.loss


async def test_a_model_computes_without_training_even_at_the_floor() -> None:
    """Logits, losses and generation read the copies that `create` made of the masters; logits are float32, not rounded."""
    tokens, targets = SHAPE.batch_of_tokens()
    found = []
    for cap in (None, FLOOR):
        async with bf16_engine(device_memory=cap) as engine:
            model = await lively(engine, SHAPE)
            logits = await model.logits(tokens)
            text = [token async for token in model.generate([1, 2], max_new_tokens=3, seed=1)]
            found.append((logits.tobytes(), text, await model.loss(tokens, targets)))
    assert found[0] == found[1]
    assert logits.dtype == np.float32
    assert not np.array_equal(from_bf16(to_bf16(logits)), logits)
    async with Engine("cpu") as engine:
        exact = await (await lively(engine, SHAPE)).logits(tokens)
    assert 1e-4 < np.abs(logits - exact).max() / np.abs(exact).max() < 0.03


async def test_masters_are_float32_and_the_same_as_in_fp32() -> None:
    async with Engine("cpu") as engine:
        expected = await (await lively(engine, SHAPE)).state_dict()
    async with bf16_engine() as engine:
        model = await lively(engine, SHAPE)
        assert_same_tensors(await model.state_dict(), expected)
        read = runtime_of(engine).read
        for parameter in model_state_of(model).parameters.values():
            for key, copy in parameter.copies.items():
                assert np.array_equal(await read(copy), to_bf16(await read(parameter.weights[key])))


async def test_a_resumed_training_has_equal_bits(tmp_path: Path) -> None:
    batches = batches_of(SHAPE, 3)
    async with bf16_engine(device_memory=STATES // 3) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER)
        await trainer.step(*batches[0])
        await trainer.save(tmp_path / "c")
        state = json.loads((tmp_path / "c" / "trainer.json").read_text())
        assert (state["precision"], state["tall"]) == ("bf16", 2)
        with TensorReader(tmp_path / "c" / "model.safetensors") as reader:
            wte = reader.read("transformer.wte.weight")
        assert not np.array_equal(from_bf16(to_bf16(wte)), wte), "the masters are saved, not their copies"
        for batch in batches[1:]:
            await trainer.step(*batch)
        expected = await states_of(trainer)
    async with bf16_engine() as engine:
        again = await Trainer.load(engine, tmp_path / "c")
        for batch in batches[1:]:
            await again.step(*batch)
        assert_same_tensors(await states_of(again), expected)


@pytest.mark.parametrize("there", ["fp32", "bf16"])
async def test_a_checkpoint_resumes_in_another_precision_with_a_warning(there: str, tmp_path: Path) -> None:
    def engine_of(precision: str) -> Engine:
        return bf16_engine() if precision == "bf16" else Engine("cpu")

    here = "bf16" if there == "fp32" else "fp32"
    tokens, targets = batches_of(SHAPE, 1)[0]
    async with engine_of(there) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER)
        await trainer.step(tokens, targets)
        await trainer.save(tmp_path / "c")
        saved, loss = await trainer.model.state_dict(), await trainer.model.loss(tokens, targets)
    async with engine_of(here) as engine:
        tall = "1 -> 2" if here == "bf16" else "2 -> 1"
        with pytest.warns(UserWarning, match=rf"precision '{there}' -> '{here}', tall {tall}"):
            again = await Trainer.load(engine, tmp_path / "c")
        assert_same_tensors(await again.model.state_dict(), saved)
        report = await again.step(tokens, targets)
        assert report.step == 2
        assert report.loss != loss
        assert report.loss == pytest.approx(loss, rel=3e-3)
        model = await GPT2.from_pretrained(engine, tmp_path / "c", tile=SHAPE.tile)
        assert await model.loss(tokens, targets) == pytest.approx(loss, rel=3e-3)


async def test_a_checkpoint_older_than_precisions_counts_as_fp32(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await Trainer(await lively(engine, SHAPE)).save(tmp_path / "c")
        state = json.loads((tmp_path / "c" / "trainer.json").read_text())
        del state["tall"]
        (tmp_path / "c" / "trainer.json").write_text(json.dumps(state))
        (tmp_path / "c" / "checksums.json").unlink()
        await Trainer.load(engine, tmp_path / "c")


async def test_the_floor_is_refused_before_any_work_and_the_plan_of_a_gpu_knows_it() -> None:
    async with bf16_engine(device_memory=FLOOR - 1) as engine:
        with pytest.raises(BudgetError) as caught:
            await GPT2.create(engine, SHAPE.config, tile=SHAPE.tile)
        assert caught.value.floor == FLOOR
        assert engine.statistics().operations == 0
    coarse = floor_demand(SHAPE.config, SHAPE.tile, COARSE, "bf16").rounded(COARSE.alignment).floor_nbytes
    plan = plan_step(SHAPE.config, SHAPE.work(), Machine(device="cuda:0", precision="bf16"))
    assert (plan.floor_bytes, plan.row_tokens) == (coarse, 4 * SHAPE.tile)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_floor_is_the_need_of_the_largest_program(precision: str) -> None:
    """The floor is exact in each precision. The widest tiles are the hidden layer's in fp32, the residual stream's in bf16."""
    config = GPT2Config(n_layer=2, n_head=2, n_embd=24, block_size=64, vocab_size=300)
    parameters = Parameters(config, Tiling(config, 32, GRAIN), precision)
    program = record("step", parameters, parameters.tiling.rows(1, 64))
    needed = demand_of([program], parameters.states()).floor_nbytes
    assert needed == floor_demand(config, 32, GRAIN, precision).floor_nbytes
    other = "bf16" if precision == "fp32" else "fp32"
    assert needed != floor_demand(config, 32, GRAIN, other).floor_nbytes
