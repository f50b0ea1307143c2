"""The law of equal bits on a real GPU: budgets, prefetch, graphs, disk, modes and the place of AdamW change no result.

The yardstick is a training with everything on the GPU. tests/layers/test_cuda_replayed.py tests streams that are late in any
order, on a driver that makes them late. Here the GPU decides.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asynctile import BudgetError, Engine
from asynctile.layers import GPT2
from tests.gpu.conftest import NAME
from tests.layers.shapes import SHAPES, Shape
from tests.layers.training import SMALL, TWO_BLOCKS, Outcome, assert_same_bits, outcome

pytestmark = pytest.mark.gpu

#: A hanging run must not take the whole GPU time with it.
PROGRESS_S = 60
STEPS = 3  # where everything stays, step 1 loads tiles, step 2 captures graphs, step 3 replays them
_yardsticks: dict[tuple[Shape, str], Outcome] = {}


@pytest.fixture
def main_shape(rehearsed: bool) -> Shape:
    return SMALL if rehearsed else TWO_BLOCKS


@pytest.fixture(params=["fp32", "tf32", "bf16"])
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


async def on_gpu(shape: Shape, precision: str, *, more: dict[str, Any] | None = None, **engine_options: Any) -> Outcome:
    async with asyncio.timeout(PROGRESS_S):
        options = {"precision": precision, **engine_options}
        return await outcome(shape, steps=STEPS, device=NAME, engine_options=options, **(more or {}))


async def yardstick(shape: Shape, precision: str) -> Outcome:
    if (shape, precision) not in _yardsticks:
        _yardsticks[shape, precision] = await on_gpu(shape, precision)
    return _yardsticks[shape, precision]


async def floor_of(shape: Shape, precision: str) -> int:
    async with Engine(NAME, device_memory=1, precision=precision) as engine:
        with pytest.raises(BudgetError) as caught:
            await GPT2.create(engine, shape.config, tile=shape.tile)
    return caught.value.floor


@pytest.mark.parametrize("prefetch", [0, 2, 8])
@pytest.mark.parametrize("share", ["floor", 0.25, 0.50])
async def test_no_budget_and_no_prefetch_changes_a_bit(
    share: str | float, prefetch: int, precision: str, main_shape: Shape
) -> None:
    floor = await floor_of(main_shape, precision)
    cap = floor if isinstance(share, str) else max(floor, int(share * main_shape.config.states_nbytes))
    found = await on_gpu(main_shape, precision, device_memory=cap, prefetch=prefetch)
    assert_same_bits(found, await yardstick(main_shape, precision))
    assert 0 < found.device_peak_bytes <= cap


@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "keep"])
@pytest.mark.parametrize("clip_norm", [None, 1e30], ids=["fused", "two-phase"])
@pytest.mark.parametrize("share", [None, 0.5])
async def test_no_mode_changes_a_bit(
    share: float | None, recompute: bool, clip_norm: float | None, precision: str, main_shape: Shape
) -> None:
    cap = None if share is None else max(await floor_of(main_shape, precision), int(share * main_shape.config.states_nbytes))
    more = {"recompute": recompute, "clip_norm": clip_norm}
    found = await on_gpu(main_shape, precision, device_memory=cap, more=more)
    assert_same_bits(found, await yardstick(main_shape, precision))


@pytest.mark.parametrize("update", ["device", "host", "auto"])
async def test_no_place_of_the_update_changes_a_bit(update: str, precision: str, main_shape: Shape) -> None:
    cap = max(await floor_of(main_shape, precision), main_shape.config.states_nbytes // 3)
    found = await on_gpu(main_shape, precision, device_memory=cap, more={"update": update})
    assert_same_bits(found, await yardstick(main_shape, precision))


async def test_a_disk_below_ram_changes_no_bit(precision: str, main_shape: Shape, tmp_path: Path) -> None:
    states, floor = main_shape.config.states_nbytes, await floor_of(main_shape, precision)
    caps = {"device_memory": max(floor, states // 3), "host_memory": states // 2 + (300 << 10), "spill": tmp_path}
    found = await on_gpu(main_shape, precision, **caps)
    assert_same_bits(found, await yardstick(main_shape, precision))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
async def test_the_exact_floor_is_enough_for_every_shape(shape: Shape, rehearsed: bool) -> None:
    if rehearsed and shape.config.n_layer * shape.batch * shape.length > 60:
        pytest.skip("too long for a rehearsal")
    found = await on_gpu(shape, "bf16", device_memory=await floor_of(shape, "bf16"))
    assert_same_bits(found, await yardstick(shape, "bf16"))


async def test_the_same_training_twice_is_the_same(precision: str, main_shape: Shape) -> None:
    assert_same_bits(await on_gpu(main_shape, precision), await yardstick(main_shape, precision))
