"""The promise of a cap holds for every request to an engine, not only for the first step."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynctile import BudgetError, DeviceError, Engine
from asynctile.layers import GPT2, GPT2Config, Trainer
from asynctile.layers.machine import Machine, Work
from asynctile.layers.plan import plan_step
from asynctile.share import runtime_of
from tests.settle import HANG_S, until

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=24, vocab_size=70)


def tokens(batch: int = 2, length: int = 20) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch * length).integers(0, CONFIG.vocab_size, (batch, length))


def plan(config: GPT2Config = CONFIG, **options: Any) -> Any:
    return plan_step(config, Work(batch_size=2, seq_len=20, tile=16), Machine(**options))


async def test_on_cpu_the_floor_of_a_step_is_enough_for_losses_between_steps() -> None:
    floor = plan(device="cpu").floor_bytes
    async with Engine("cpu", host_memory=floor) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, tile=16))
        for _ in range(2):
            await trainer.step(tokens(), tokens())
            await trainer.model.loss(tokens(), tokens())


async def test_on_cpu_a_second_model_that_does_not_fit_is_refused_and_the_first_goes_on() -> None:
    floor = plan(device="cpu").floor_bytes
    async with Engine("cpu", host_memory=floor + 4096) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, tile=16))
        await trainer.step(tokens(), tokens())
        with pytest.raises(BudgetError, match="host_memory"):
            await GPT2.create(engine, CONFIG, tile=16)
        await trainer.step(tokens(), tokens())


async def test_the_planned_host_memory_is_enough_and_other_work_is_refused_before_it_begins() -> None:
    config = replace(CONFIG, n_layer=1)
    planned = plan(config, device="emulated", device_memory="64KiB")
    async with Engine("emulated", device_memory="64KiB", host_memory=planned.host_bytes) as engine:
        trainer = Trainer(await GPT2.create(engine, config, tile=16))
        refused = 0
        for batch in (tokens(), tokens(4, 24), tokens(2, 13), tokens()):
            for work in (trainer.step, trainer.gradients, trainer.model.loss):
                operations = engine.statistics().operations
                try:
                    await work(batch, batch)
                except BudgetError:
                    refused += 1
                    assert engine.statistics().operations == operations
        assert refused > 0
        assert trainer.model.torn is None
        await trainer.step(tokens(), tokens())
        assert engine.statistics().host_peak_bytes <= planned.host_bytes


async def test_host_memory_one_byte_below_the_plan_is_refused_before_any_work() -> None:
    planned = plan(device="emulated", device_memory="64KiB")
    async with Engine("emulated", device_memory="64KiB", host_memory=planned.host_bytes - 1) as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, tile=16))
        with pytest.raises(BudgetError, match="raise host_memory") as caught:
            await trainer.step(tokens(), tokens())
        assert caught.value.floor == planned.host_bytes
        assert engine.statistics().operations == 0


async def test_memory_of_an_arena_that_was_divided_anew_is_freed() -> None:
    async with Engine("emulated", device_memory="64KiB") as engine:
        await (await GPT2.create(engine, CONFIG, tile=8)).logits(tokens())
        old = list(runtime_of(engine).tiers.top.arena.pools)
        await (await GPT2.create(engine, CONFIG, tile=32)).logits(tokens())
        assert not set(old) & set(runtime_of(engine).tiers.top.arena.pools)
        assert all(pool.memory is None for pool in old)


async def test_an_engine_that_closes_ends_the_work_in_it_and_does_not_hang() -> None:
    async with Engine("emulated", device_memory="64KiB", link_rate="1MB") as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, tile=16))
        await runtime_of(engine).synchronize()
        step = asyncio.create_task(trainer.step(tokens(), tokens()))
        await until(lambda: runtime_of(engine).tiers.run_ahead.is_behind)
    async with asyncio.timeout(HANG_S):
        (ended,) = await asyncio.gather(step, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError | DeviceError)
    with pytest.raises(DeviceError, match="opens once"):
        await engine.__aenter__()


async def test_steps_requested_at_once_count_one_after_another() -> None:
    async with Engine("cpu") as engine:
        trainer = Trainer(await GPT2.create(engine, CONFIG, tile=16))
        reports = await asyncio.gather(*(trainer.step(tokens(), tokens()) for _ in range(3)))
        assert sorted(report.step for report in reports) == [1, 2, 3]
