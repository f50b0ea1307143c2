"""Trainings of LLaMA and Qwen3 on a GPU whose driver and kernels run on the CPU (tests/cuda), in fp32 and bf16."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from tests.laws import law
from tests.layers.families import FAMILIES
from tests.layers.shapes import Shape
from tests.layers.stored import loaded, results_of, write_folder
from tests.layers.training import Outcome, assert_same_bits, distance, lively, outcome
from tests.settle import HANG_S

STEPS = 4  # step 1 loads tiles, step 2 captures graphs, later steps replay them

pytestmark = pytest.mark.usefixtures("soft_gpu")


@pytest.fixture(params=["qwen3", *map(law, ("llama", "mistral", "qwen2"))])
def shape(request: pytest.FixtureRequest) -> Shape:
    """Return one block on one sequence, which is cut."""
    family = FAMILIES[request.param]
    return replace(family, config=replace(family.config, n_layer=1), batch=1, length=30, micro_batches=1)


async def on_gpu(shape: Shape, **engine_options: Any) -> Outcome:
    async with asyncio.timeout(HANG_S):
        return await outcome(shape, steps=STEPS, device="cuda:0", engine_options=engine_options)


async def test_fp32_agrees_with_the_cpu_and_bf16_with_fp32(shape: Shape) -> None:
    cpu = await outcome(shape, steps=STEPS, device="cpu")
    fp32, bf16 = await on_gpu(shape), await on_gpu(shape, precision="bf16")
    assert fp32.losses == pytest.approx(cpu.losses, rel=5e-6)
    # The bias of the keys has only rounding errors for a gradient, which AdamW makes as large as any other.
    names = [name for name in cpu.weights if not name.endswith("k_proj.bias")]
    assert max(distance(fp32.weights[name], cpu.weights[name]) for name in names) < 1e-4
    assert fp32.losses != bf16.losses
    assert bf16.losses == pytest.approx(cpu.losses, rel=1e-2)
    assert bf16.norms == pytest.approx(cpu.norms, rel=1e-1)


async def test_no_budget_changes_a_bit_of_bf16(shape: Shape) -> None:
    cap = shape.config.states_nbytes // 2
    assert_same_bits(await on_gpu(shape, precision="bf16", device_memory=cap), await on_gpu(shape, precision="bf16"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
async def test_weights_kept_in_bf16_give_the_bits_of_weights_in_float32(shape: Shape, precision: str, tmp_path: Path) -> None:
    folder, found = write_folder(tmp_path, shape), []
    for weights in ("float32", "stored"):
        async with asyncio.timeout(HANG_S), Engine("cuda:0", precision=precision) as engine:
            found.append(await results_of(await loaded(engine, folder, shape, weights), shape))
    assert found[0] == found[1]


async def test_texts_are_those_of_the_cpu(shape: Shape) -> None:
    found = []
    for device in ("cpu", "cuda:0"):
        async with asyncio.timeout(HANG_S), Engine(device) as engine:
            model = await lively(engine, shape)
            found.append([token async for token in model.generate(range(20), max_new_tokens=8, temperature=0)])
    assert found[0] == found[1]
