"""Adapters over weights that are kept in bf16: losses, gradients and updates are those over float32 weights, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import LlamaConfig, LoRA, Model, Trainer
from asynctile.layers.floor import floor_demand
from asynctile.layers.machine import Machine, Work
from asynctile.layers.model import model_state_of
from asynctile.layers.plan import plan_step
from asynctile.layers.tuning import Tuning
from asynctile.share import Share
from tests.laws import covering
from tests.layers.shapes import Shape
from tests.layers.stored import SHAPES, loaded, matrices_of, write_folder
from tests.layers.test_replicas_trained import by_coroutines
from tests.layers.training import OPTIMIZER, Tensors, assert_same_tensors, batches_of

RUNS = {"played": lambda _: None, "by coroutines": by_coroutines}
#: Caps by name: the floor of the training, or None.
PLACES: dict[str, dict[str, Any]] = {
    "ram": {"device": "cpu"},
    "a device at the floor": {"device": "emulated", "device_memory": "floor"},
    "three tiers": {"device": "emulated", "device_memory": "floor", "host_memory": "third", "spill": True},
    "two devices": {"device": "emulated*2", "device_memory": "floor"},
}
#: The families; the others have no verb and no tensor that the first two do not have.
ORDER = ["gpt2", "qwen3", "llama", "mistral", "qwen2"]
_expected: dict[tuple[str, int], tuple[Any, ...]] = {}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("stored")
    return {name: write_folder(root / name, shape) for name, shape in SHAPES.items()}


def lora_of(shape: Shape) -> LoRA:
    """Return adapters of attention and of the MLP."""
    targets = ("c_attn", "mlp.c_proj") if shape.config.model_type == "gpt2" else ("q_proj", "v_proj", "up_proj", "down_proj")
    return LoRA(rank=3, alpha=7.0, targets=targets, seed=2)


def trainer_of(model: Model, shape: Shape, replicas: int = 1, **options: Any) -> Trainer:
    return Trainer(model, OPTIMIZER, adapters=lora_of(shape), replicas=replicas,
                   micro_batches=1 if replicas > 1 else shape.micro_batches, **options)  # fmt: skip


async def trained(engine: Share, folder: Path, shape: Shape, weights: str, **options: Any) -> tuple[Any, ...]:
    """Return the losses and norms of three steps, whether each was played, and the gradients and all tensors behind them."""
    model = await loaded(engine, folder, shape, weights)
    trainer = trainer_of(model, shape, **options)
    reports = [await trainer.step(*batch) for batch in batches_of(shape, 3)]
    gradients: Tensors = await trainer.gradients(*shape.batch_of_tokens(9))
    assert all("lora" in name and gradient.any() for name, gradient in gradients.items())
    numbers = [(report.loss, report.grad_norm) for report in reports]
    return numbers, [report.played for report in reports], gradients, await model.state_dict()


async def expected(folders: dict[str, Path], family: str, replicas: int) -> tuple[Any, ...]:
    """Return the outcome over float32 weights, with everything resident on `cpu`."""
    if (family, replicas) not in _expected:
        async with Engine("cpu") as engine:
            found = await trained(engine, folders[family], SHAPES[family], "float32", replicas=replicas)
            _expected[family, replicas] = found
    return _expected[family, replicas]


def options_at(place: str, shape: Shape, spill: Path) -> dict[str, Any]:
    """Return the options of an engine there."""
    tuning, stored = Tuning(lora_of(shape)), matrices_of(shape.config)
    floor = floor_demand(shape.config, shape.tile, tuning=tuning, stored=stored).floor_nbytes
    values = {"floor": floor, "third": max(4 * shape.config.parameter_count // 3, 96 << 10), True: spill}
    return {name: values.get(value, value) for name, value in PLACES[place].items()}


@pytest.mark.parametrize(("family", "place", "prepare"), covering(ORDER, list(PLACES), RUNS, few=len(PLACES)))
async def test_no_place_changes_a_bit_of_a_training(
    family: str, place: str, prepare: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    shape, replicas = SHAPES[family], 2 if place == "two devices" else 1
    numbers, _, gradients, tensors = await expected(folders, family, replicas)
    async with Engine(**options_at(place, shape, tmp_path)) as engine:
        prepare(engine)
        found = await trained(engine, folders[family], shape, "stored", replicas=replicas)
    assert found[0] == numbers
    assert found[1] == [False, engine.plays, engine.plays]
    assert_same_tensors(found[2], gradients)
    assert_same_tensors(found[3], tensors)


@pytest.mark.parametrize(("family", "recompute", "clip_norm"), covering(
    ORDER, [True, False], {"fused": None, "clipped": 1e-3}, few=2))  # fmt: skip
async def test_no_mode_changes_a_bit_of_a_training(
    family: str, recompute: bool, clip_norm: float | None, folders: dict[str, Path]
) -> None:
    shape, outcomes = SHAPES[family], []
    for weights, place in (("float32", "ram"), ("stored", "a device at the floor")):
        async with Engine(**options_at(place, shape, Path())) as engine:
            options = {"recompute": recompute, "clip_norm": clip_norm}
            outcomes.append(await trained(engine, folders[family], shape, weights, **options))
    assert outcomes[0][0] == outcomes[1][0]
    assert_same_tensors(outcomes[0][3], outcomes[1][3])


async def test_a_plan_foretells_the_bytes_that_move(folders: dict[str, Path]) -> None:
    shape = SHAPES["llama"]
    work = shape.work(update="device", recompute=True, tuning=Tuning(lora_of(shape)), weights="stored")
    options = options_at("a device at the floor", shape, Path())
    async with Engine(**options) as engine:
        model = await loaded(engine, folders["llama"], shape, "stored")
        trainer = trainer_of(model, shape, update="device", recompute=True)
        reports = [await trainer.step(*batch) for batch in batches_of(shape, 3)]
        states = model_state_of(model).parameters.states_nbytes
        plan, wide = (plan_step(shape.config, replace(work, weights=weights), Machine(**options, measured=engine.rates))
                      for weights in ("stored", "float32"))  # fmt: skip
    assert (plan.uploaded_bytes, plan.downloaded_bytes) == (reports[2].uploaded_bytes, reports[2].downloaded_bytes)
    assert plan.uploaded_bytes < wide.uploaded_bytes
    assert plan.states_bytes == states < 0.6 * wide.states_bytes
    with pytest.raises(ValueError, match=r"the model keeps model\.embed_tokens\.weight in bf16 as its"):
        plan_step(shape.config, shape.work(weights="stored"), Machine(device="emulated"))


def test_operations_under_a_cap_seldom_wait_for_a_place_that_another_has_just_left() -> None:
    config = LlamaConfig(n_layer=2, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2,
                         vocab_size=256, block_size=64)  # fmt: skip
    tuning = Tuning(lora=LoRA(rank=4, alpha=8.0, targets=("q_proj", "v_proj")))
    work = Work(batch_size=1, seq_len=64, tile=64, weights="stored", tuning=tuning)
    resident, capped = (plan_step(config, work, Machine(device="emulated", device_memory=cap, own_cores=2))
                        for cap in (None, 1_000_000))  # fmt: skip
    assert resident.resident_bytes > 4 * capped.device_peak_bytes
    assert capped.step_s < 1.5 * resident.step_s  # 2.0, if each widened tile takes the place of the one before


async def test_a_part_that_is_not_frozen_may_not_be_kept_in_bf16(folders: dict[str, Path]) -> None:
    shape = SHAPES["gpt2"]
    async with Engine("cpu") as engine:
        model = await loaded(engine, folders["gpt2"], shape, "stored")
        with pytest.raises(ValueError, match=r"keeps transformer\.h\.0\.mlp\.c_fc\.weight in bf16 .*train adapters"):
            Trainer(model, freeze=("wte*", "wpe*", "*attn*", "*c_proj*"))
        assert not model_state_of(model).in_training
        trainer = Trainer(model, freeze=tuple(matrices_of(shape.config)))
        before = await model.state_dict()
        assert (await trainer.step(*shape.batch_of_tokens())).step == 1
        after = await model.state_dict()
    changed = {name for name, value in after.items() if value.tobytes() != before[name].tobytes()}
    assert changed == set(before) - matrices_of(shape.config)
