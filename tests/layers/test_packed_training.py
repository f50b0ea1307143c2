"""Training on sequences of several examples: what each has alone, and equal bits wherever the bytes are.

test_packing.py tests which examples share a row, tests/kernels/test_attention_packed.py the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import LoRA, Trainer
from asynctile.layers.parameters import Parameters
from asynctile.layers.tiling import Tiling
from tests.interpreter import Model as Interpreted
from tests.laws import covering, law
from tests.layers.packed import PACKED, PackedShape, one_by_one, packed
from tests.layers.shapes import LIGHT
from tests.layers.test_replicas_trained import by_coroutines
from tests.layers.training import assert_same_bits, assert_same_tensors, distance, floor_of, lively, outcome, yardstick

CUT = packed(LIGHT["sequences cut, all ragged"])
SEVERAL = packed(LIGHT["several sequences in a tile"])
QWEN3 = PACKED["qwen3"]
RUNS = {"played": lambda _: None, "by coroutines": by_coroutines}


@pytest.mark.parametrize("name", [
    "one tile of everything", "sequences cut, all ragged", "several sequences in a tile", "qwen3", "llama",
    *map(law, ("a head wider than the tile", "mistral", "qwen2")),
])  # fmt: skip
async def test_loss_and_gradients_are_those_of_the_examples_one_by_one(name: str) -> None:
    shape = PACKED[name]
    batch = shape.batch_of_tokens(3)
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, shape), micro_batches=shape.micro_batches)
        loss, gradients = await one_by_one(Trainer(trainer.model), *batch)
        assert await trainer.model.loss(*batch) == pytest.approx(loss, abs=1e-5)
        found = await trainer.gradients(*batch)
        without = await trainer.gradients(*batch[:2])
    norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
    for tensor, gradient in found.items():
        assert np.abs(gradient - gradients[tensor]).max() < 5e-6 * norm, tensor
    assert max(float(np.abs(without[tensor] - gradients[tensor]).max()) for tensor in gradients) > 1e-2 * norm


@pytest.mark.parametrize("shape", [CUT, QWEN3], ids=["gpt2", "qwen3"])
async def test_adapters_learn_from_examples_in_a_sequence_what_they_learn_one_by_one(shape: PackedShape) -> None:
    batch, targets = shape.batch_of_tokens(3), ("c_attn", "mlp.c_proj") if shape is CUT else ("q_proj", "down_proj")
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, shape), adapters=LoRA(rank=3, alpha=7.0, targets=targets, seed=2))
        await trainer.step(*batch)  # until then B is zero, and A has no gradient
        loss, gradients = await one_by_one(trainer, *batch)
        assert await trainer.model.loss(*batch) == pytest.approx(loss, abs=1e-5)
        found = await trainer.gradients(*batch)
    norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
    assert found.keys() == gradients.keys() and norm > 0
    for tensor, gradient in found.items():
        assert np.abs(gradient - gradients[tensor]).max() < 5e-6 * norm, tensor


@pytest.mark.parametrize("shape", [CUT, SEVERAL, QWEN3], ids=["cut", "several", "qwen3"])
async def test_one_example_a_sequence_has_the_bits_of_a_batch_without_positions(shape: PackedShape) -> None:
    tokens, targets, _ = shape.batch_of_tokens()
    positions = np.tile(np.arange(shape.length), (shape.batch, 1))
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, shape), micro_batches=shape.micro_batches)
        assert await trainer.model.loss(tokens, targets, positions) == await trainer.model.loss(tokens, targets)
        found, expected = await trainer.gradients(tokens, targets, positions), await trainer.gradients(tokens, targets)
    assert_same_tensors(found, expected)


@pytest.mark.parametrize("shape", [CUT, QWEN3], ids=["gpt2", "qwen3"])
@pytest.mark.parametrize(("share", "prefetch", "recompute", "prepare"), covering(
    [0.25, 0.5, None], [0, 8, 2], [False, True], RUNS, few=2))
async def test_no_budget_and_no_mode_changes_a_bit(
    shape: PackedShape, share: float | None, prefetch: int, recompute: bool, prepare: Any
) -> None:
    cap = share and max(int(1.1 * await floor_of(shape)), int(share * shape.config.states_nbytes))
    options = {"device_memory": cap, "prefetch": prefetch}
    found = await outcome(shape, steps=2, engine_options=options, recompute=recompute, prepare=prepare)
    assert_same_bits(found, await yardstick(shape))
    assert cap is None or found.device_peak_bytes <= cap


async def test_no_number_of_devices_changes_a_bit_of_two_replicas() -> None:
    shape = replace(CUT, micro_batches=1)
    expected = await outcome(shape, steps=2, device="cpu", replicas=2)
    assert expected.losses != (await outcome(replace(LIGHT["sequences cut, all ragged"], micro_batches=1), steps=2,
                                             device="cpu", replicas=2)).losses  # fmt: skip
    found = await outcome(shape, steps=2, device="emulated*2", replicas=2)
    assert_same_bits(found, expected)


async def test_disk_below_ram_changes_no_bit(tmp_path: Any) -> None:
    cap = max(int(1.1 * await floor_of(CUT)), CUT.config.states_nbytes // 3)
    found = await outcome(CUT, steps=2, device="cpu", engine_options={"host_memory": cap, "spill": tmp_path})
    assert_same_bits(found, await yardstick(CUT))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["sequences cut, all ragged", "several sequences in a tile", "qwen3"])
def test_programs_read_nothing_that_is_not_written(name: str, precision: str) -> None:
    """The interpreter makes a tile NaN before an overwrite, and computes by the contracts alone."""
    shape = PACKED[name]
    model = Interpreted.create(Parameters(shape.config, Tiling(shape.config, shape.tile), precision), seed=1)
    tokens, targets, positions = shape.batch_of_tokens()
    loss, gradients = model.gradients(tokens, targets, shape.micro_batches, positions=positions.astype(np.int32))
    assert loss == pytest.approx(model.loss(tokens, targets, positions.astype(np.int32)), rel=1e-6)
    whole = model.gradients(tokens, targets, shape.micro_batches)[1]
    assert any(distance(gradients[tensor], whole[tensor]) > 0.05 for tensor in gradients)


async def test_a_packed_step_is_played_beside_a_plain_one_of_its_shape() -> None:
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, SEVERAL))
        batch = SEVERAL.batch_of_tokens()
        reports = [await trainer.step(*given) for given in (batch, batch[:2], batch, batch[:2], batch)]
    assert [report.played for report in reports][2:] == [True] * 3
