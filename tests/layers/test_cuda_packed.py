"""Trainings on sequences of several examples, on a GPU whose driver and kernels run on the CPU."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.layers.packed import packed
from tests.layers.test_cuda import STEPS, WHOLE
from tests.layers.training import LONE, Outcome, assert_same_bits, distance, outcome
from tests.settle import HANG_S

pytestmark = pytest.mark.usefixtures("soft_gpu")


async def on_gpu(shape: Any, precision: str, **options: Any) -> Outcome:
    async with asyncio.timeout(HANG_S):
        return await outcome(packed(shape), steps=STEPS, device="cuda:0", engine_options={"precision": precision, **options})


async def test_fp32_agrees_with_the_cpu_and_bf16_with_fp32() -> None:
    cpu = await outcome(packed(LONE), steps=STEPS, device="cpu")
    fp32, bf16 = await on_gpu(LONE, "fp32"), await on_gpu(LONE, "bf16")
    assert fp32.losses == pytest.approx(cpu.losses, rel=1e-6)
    # The bias of the keys has only rounding errors for a gradient, which AdamW makes as large as any other.
    names = [name for name in cpu.weights if not name.endswith("c_attn.bias")]
    assert max(distance(fp32.weights[name], cpu.weights[name]) for name in names) < 1e-4
    assert bf16.losses == pytest.approx(cpu.losses, rel=1e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
async def test_no_budget_changes_a_bit_and_no_library_computes_packed_rows(precision: str) -> None:
    """Replayed graphs get new positions with each batch."""
    plain = await on_gpu(WHOLE, precision)
    assert_same_bits(await on_gpu(WHOLE, precision, device_memory=WHOLE.config.states_nbytes // 2), plain)
    assert plain.losses == pytest.approx((await outcome(packed(WHOLE), steps=STEPS, device="cpu")).losses, rel=2e-2)
