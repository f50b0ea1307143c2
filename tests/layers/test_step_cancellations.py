"""A step, or a forward pass, that is cancelled in its middle: the step never was, or it ends first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynctile import Engine, TornModelError
from asynctile.share import runtime_of
from tests.laws import covering
from tests.layers.disturbances import BATCHES, BEFORE, DEVICES, Hang, broken, loss_of_step_two, trainer_on, uninterrupted
from tests.layers.training import SHORTER, assert_same_tensors, floor_of, lively, states_of
from tests.settle import settle


@pytest.mark.parametrize(
    ("options", "at"),
    covering(DEVICES, {"in the head's backward": ("cross_entropy_backward", 1), **BEFORE}, few=3),
    indirect=["options"],
)
async def test_a_step_cancelled_before_its_first_update_leaves_the_model_unchanged(
    options: dict[str, Any], at: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(**options) as engine:
        device = runtime_of(engine).tiers.device
        # On this device the host cannot run ahead to the update, past the hanging kernel.
        device.grain = replace(device.grain, run_ahead=32)
        monkeypatch.setattr("asynctile.streams.run_ahead.RUN_AHEAD_OPERATIONS", 32)
        trainer = await trainer_on(engine, recompute=True)
        first = await trainer.step(*BATCHES[0])
        before = await states_of(trainer)
        hang = Hang(engine, *at)
        task = asyncio.create_task(trainer.step(*BATCHES[1]))
        await hang.reached()
        task.cancel()
        await settle(engine)
        assert not task.done(), "the step ended while its work was under way"
        hang.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert trainer.step_count == 1
        assert trainer.last_report is first
        assert_same_tensors(await states_of(trainer), before)
        for batch in BATCHES[1:3]:
            await trainer.step(*batch)
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(3))


@pytest.mark.parametrize(
    ("options", "at", "cancels"),
    covering(DEVICES, {"adamw": ("adamw", 1), "later": ("adamw", 50), "backward": ("layernorm_backward", 9)}, [1, 3]),
    indirect=["options"],
)
async def test_a_step_cancelled_after_its_first_update_ends_and_then_raises_the_cancellation(
    options: dict[str, Any], at: tuple[str, int], cancels: int
) -> None:
    async with Engine(**options) as engine:
        trainer = await trainer_on(engine)
        await trainer.step(*BATCHES[0])
        hang = Hang(engine, *at)
        task = asyncio.create_task(trainer.step(*BATCHES[1]))
        await hang.reached()
        for _ in range(cancels):
            task.cancel()
            await settle(engine)
        assert not task.done()
        hang.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert trainer.step_count == 2
        assert trainer.last_report is not None
        assert (trainer.last_report.step, trainer.last_report.loss) == (2, await loss_of_step_two())
        assert trainer.model.torn is None
        second = await states_of(trainer)
        await trainer.step(*BATCHES[2])
        third = await states_of(trainer)
    assert_same_tensors(second, await uninterrupted(2))
    assert_same_tensors(third, await uninterrupted(3))


async def test_a_step_that_fails_after_its_first_update_tears_the_model_even_if_it_was_cancelled() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        hang = Hang(engine, "adamw", 5, then=broken)
        task = asyncio.create_task(trainer.step(*BATCHES[0]))
        await hang.reached()
        task.cancel()
        await settle(engine)
        hang.release()
        with pytest.raises(TornModelError):
            await task
        with pytest.raises(TornModelError):
            await trainer.step(*BATCHES[0])


async def test_a_step_cancelled_while_it_waits_for_its_turn_never_begins() -> None:
    async with Engine("cpu") as engine:
        trainer = await trainer_on(engine)
        await trainer.step(*BATCHES[0])
        hang = Hang(engine, "gelu", 1)
        first = asyncio.create_task(trainer.model.logits(BATCHES[0][0]))
        await hang.reached()
        second = asyncio.create_task(trainer.step(*BATCHES[1]))
        await settle(engine)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        hang.release()
        await first
        assert trainer.step_count == 1
        found = await states_of(trainer)
    assert_same_tensors(found, await uninterrupted(1))


@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelled_logits_leave_the_engine_usable_at_the_floor(cancels: int) -> None:
    async with Engine("emulated", device_memory=await floor_of()) as engine:
        model = await lively(engine, SHORTER)
        expected = await model.logits(BATCHES[0][0])
        hang = Hang(engine, "gelu", 2)
        task = asyncio.create_task(model.logits(BATCHES[0][0]))
        await hang.reached()
        for _ in range(cancels):
            task.cancel()
            await settle(engine)
        hang.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(2):
            assert np.array_equal(await model.logits(BATCHES[0][0]), expected)
