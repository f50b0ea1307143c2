"""LLaMA, Mistral, Qwen2 and Qwen3: values against float64, equal bits wherever their bytes are, the floor, and texts.

families.py has the models and the arithmetic in float64. tests/reference compares with transformers.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, Engine
from asynctile.layers import Trainer
from asynctile.layers.floor import floor_demand
from asynctile.layers.llama.rotary_config import RotaryConfig
from asynctile.layers.machine import Machine
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import plan_step
from asynctile.layers.qwen3.config import Qwen3Config
from asynctile.layers.step import KINDS, parts_of, record
from asynctile.layers.tiling import Tiling
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from tests.laws import covering, law
from tests.layers.families import CONFIGS, FAMILIES, NAMES, logits_of, loss_of
from tests.layers.shapes import Shape
from tests.layers.test_replicas_trained import by_coroutines
from tests.layers.training import assert_same_bits, distance, floor_of, lively, outcome, yardstick

RUNS = {"played": lambda _: None, "by coroutines": by_coroutines}


FEW = pytest.mark.parametrize("shape", NAMES, indirect=True)
LLAMA = pytest.mark.parametrize("shape", ["llama", *map(law, ("mistral", "qwen2", "qwen3"))], indirect=True)
QWEN3 = pytest.mark.parametrize("shape", ["qwen3", *map(law, ("llama", "mistral", "qwen2"))], indirect=True)
#: All four.
EACH = pytest.mark.parametrize("shape", FAMILIES, indirect=True)


def config_of(shape: Shape) -> RotaryConfig:
    assert isinstance(shape.config, RotaryConfig)
    return shape.config


@pytest.fixture
def shape(request: pytest.FixtureRequest) -> Shape:
    return FAMILIES[request.param]


def test_the_shapes_are_cut_everywhere() -> None:
    groups = {name: len(shape.parameters().tiling["heads"]) for name, shape in FAMILIES.items()}
    assert groups == {"llama": 3, "mistral": 1, "qwen2": 1, "qwen3": 2}
    for shape in FAMILIES.values():
        tiling = shape.parameters().tiling
        assert len(tiling["heads"]) == len(tiling["key_heads"])
        assert min(len(tiling[axis]) for axis in ("model", "hidden", "vocab")) > 1
        assert tiling.row_tokens < shape.length


@EACH
@pytest.mark.parametrize("tile", [22, law(128)])
async def test_logits_loss_and_gradients_are_those_of_float64(shape: Shape, tile: int) -> None:
    config, (tokens, targets) = config_of(shape), shape.batch_of_tokens()
    async with Engine("cpu") as engine:
        model = await lively(engine, replace(shape, tile=tile))
        weights = {name: value.astype(np.float64) for name, value in (await model.state_dict()).items()}
        assert distance(await model.logits(tokens), logits_of(config, weights, tokens)) < 2e-6
        assert await model.loss(tokens, targets) == pytest.approx(loss_of(config, weights, tokens, targets), rel=1e-6)
        gradients = await Trainer(model, micro_batches=2).gradients(tokens, targets)
    draw, stride = np.random.default_rng(5), 1e-6
    for name, gradient in gradients.items():
        towards = draw.standard_normal(gradient.shape)
        rise = [loss_of(config, weights | {name: weights[name] + sign * stride * towards}, tokens, targets) for sign in (1, -1)]
        slope, scale = (rise[0] - rise[1]) / (2 * stride), float(np.linalg.norm(gradient))
        assert scale > 1e-4, name
        assert abs(float((gradient * towards).sum()) - slope) < 3e-5 * scale, name


@FEW
@pytest.mark.parametrize(("share", "prefetch", "recompute", "prepare"), covering(
    [0.25, "floor", 0.10, None], [8, 0, 1, 2], [False, True], RUNS, few=2))  # fmt: skip
async def test_no_budget_and_no_mode_changes_a_bit(
    shape: Shape, share: str | float | None, prefetch: int, recompute: bool, prepare: Any
) -> None:
    floor = await floor_of(shape)
    cap = floor if isinstance(share, str) else share and max(floor, int(share * shape.config.states_nbytes))
    options = {"device_memory": cap, "prefetch": prefetch}
    found = await outcome(shape, steps=2, engine_options=options, recompute=recompute, prepare=prepare)
    assert_same_bits(found, await yardstick(shape))
    if cap is not None:
        assert found.device_peak_bytes <= cap
        assert found.uploaded_bytes > 0


@LLAMA
@pytest.mark.parametrize("device", ["cpu", "emulated"])
async def test_every_step_after_the_first_is_played(shape: Shape, device: str) -> None:
    cap = None if device == "cpu" else max(await floor_of(shape), shape.config.states_nbytes // 2)
    async with Engine(device, device_memory=cap) as engine:
        trainer = Trainer(await lively(engine, shape))
        assert [(await trainer.step(*shape.batch_of_tokens())).played for _ in range(3)] == [False, True, True]


@QWEN3
async def test_clipping_is_equal_bit_for_bit_at_the_floor(shape: Shape) -> None:
    resident = await outcome(shape, steps=2, device="cpu", clip_norm=0.1)
    assert min(resident.norms) > 0.1
    found = await outcome(shape, steps=2, clip_norm=0.1, engine_options={"device_memory": await floor_of(shape)})
    assert_same_bits(found, resident)


@LLAMA
async def test_no_number_of_devices_changes_a_bit_of_two_replicas(shape: Shape) -> None:
    shape = replace(shape, config=replace(shape.config, n_layer=1), length=25, micro_batches=1)
    expected = await outcome(shape, steps=2, device="cpu", replicas=2)
    cap = max(await floor_of(shape), shape.config.states_nbytes // 2)
    for device, prepare in (("emulated", RUNS["by coroutines"]), ("emulated*2", RUNS["played"])):
        found = await outcome(shape, steps=2, device=device, replicas=2, engine_options={"device_memory": cap}, prepare=prepare)
        assert_same_bits(found, expected)


@QWEN3
@pytest.mark.parametrize("update", ["host", law("auto")])
async def test_no_place_of_updates_changes_a_bit(shape: Shape, update: str) -> None:
    cap = max(await floor_of(shape), shape.config.states_nbytes // 4)
    found = await outcome(shape, steps=2, update=update, engine_options={"device_memory": cap})
    assert_same_bits(found, await yardstick(shape))


@EACH
async def test_a_cap_below_the_floor_is_refused_by_engine_and_plan(shape: Shape) -> None:
    floor = await floor_of(shape)
    assert plan_step(shape.config, shape.work(), Machine(device="emulated")).floor_bytes == floor
    with pytest.raises(BudgetError):
        plan_step(shape.config, shape.work(), Machine(device="emulated", device_memory=floor - 1))


@pytest.mark.parametrize("seed", [*range(4), *map(law, range(4, 40))])
def test_no_program_needs_more_than_the_floor(seed: int) -> None:
    draw = random.Random(seed)
    keys, size = draw.randint(1, 3), 2 * draw.randint(1, 5)
    config = Qwen3Config(
        n_layer=draw.randint(1, 2), num_attention_heads=keys * draw.choice([1, 2, 4, 8]), num_key_value_heads=keys,
        head_dim=size, hidden_size=draw.randint(1, 60), intermediate_size=draw.randint(1, 60),
        vocab_size=draw.randint(2, 60), block_size=draw.randint(1, 60), attention_bias=draw.random() < 0.5,
        tie_word_embeddings=draw.random() < 0.5)  # fmt: skip
    tile, grain, precision = draw.randint(4, 40), Grain(FINE.ladder, draw.randint(1, 4)), draw.choice(["fp32", "bf16"])
    parameters = Parameters(config, Tiling(config, tile, grain), precision)
    micro_batches = draw.randint(1, 2)
    rows = parameters.tiling.rows(micro_batches * draw.randint(1, 4), draw.randint(1, config.block_size), micro_batches)
    floor = floor_demand(config, tile, grain, precision).floor_nbytes
    for kind in KINDS:
        program = record(kind, parameters, rows, kept=draw.randint(0, parts_of(config)))
        needed = demand_of([program], parameters.states())
        assert needed.floor_nbytes <= floor, (kind, config, tile, grain.tall, rows.batch, rows.length, needed.what)


@FEW
async def test_texts_are_those_of_the_logits_whoever_is_computed_beside_them(shape: Shape) -> None:
    prompts = [[1, 2, 3], list(range(5, 35)), [7]]
    async with Engine("emulated*2", device_memory=2 * await floor_of(shape)) as engine:
        model = await lively(engine, shape)
        async with model.serve() as server:
            texts = [server.generate(prompt, max_new_tokens=15, temperature=0) for prompt in prompts]
            written: list[list[int]] = [[] for _ in prompts]
            for _ in range(15):
                for tokens, text in zip(written, texts, strict=True):
                    tokens.append((await anext(text)).id)
        for prompt, tokens in zip(prompts, written, strict=True):
            logits = await model.logits([prompt + tokens])
            assert tokens == logits[0, len(prompt) - 1 : -1].argmax(axis=-1).tolist()


@QWEN3
async def test_a_family_trains_saves_and_resumes_as_if_never_stopped(shape: Shape, tmp_path: Any) -> None:
    batches = [shape.batch_of_tokens(seed) for seed in range(2)]
    async with Engine("cpu") as engine:
        trainer = Trainer(await lively(engine, shape), micro_batches=2)
        await trainer.step(*batches[0])
        await trainer.save(tmp_path / "half")
        expected = (await trainer.step(*batches[1])).loss, await trainer.model.state_dict()
    async with Engine("emulated", device_memory=await floor_of(shape)) as engine:
        trainer = await Trainer.load(engine, tmp_path / "half")
        assert trainer.model.config == CONFIGS[shape.config.model_type]
        found = (await trainer.step(*batches[1])).loss, await trainer.model.state_dict()
    assert found[0] == expected[0]
    assert {name: value.tobytes() for name, value in found[1].items()} == {
        name: value.tobytes() for name, value in expected[1].items()
    }
