"""Trainings on a GPU whose driver and kernels run on the CPU (tests/cuda): graphs, precisions, the planned bytes.

test_cuda_replayed.py tests the law of equal bits there. tests/gpu repeats the important ones on a real GPU.
"""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from asynctile.share import runtime_of
from tests.inside_engine import device_of
from tests.laws import law
from tests.layers.shapes import shape as make_shape
from tests.layers.training import (
    LONE,
    OPTIMIZER,
    SMALL,
    Outcome,
    assert_same_bits,
    assert_same_tensors,
    batches_of,
    distance,
    lively,
    outcome,
)
from tests.settle import HANG_S, settle, until

STEPS = 4  # step 1 loads tiles, step 2 captures graphs, later steps replay them
#: Several whole sequences in each of two row tiles, heads of 16 columns.
WHOLE = make_shape(32, 2, 35, 24, tile=32, batch=6, length=10, micro_batches=2)
STATES = LONE.config.states_nbytes

pytestmark = pytest.mark.usefixtures("soft_gpu")


async def on_gpu(*, steps: int = STEPS, precision: str = "fp32") -> Outcome:
    async with asyncio.timeout(HANG_S):
        return await outcome(LONE, steps=steps, device="cuda:0", engine_options={"precision": precision})


async def test_a_step_reports_its_wait_for_copies_while_it_is_traced_and_nan_otherwise() -> None:
    async with asyncio.timeout(HANG_S), Engine("cuda:0", device_memory=STATES // 2) as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER)
        batches = batches_of(LONE, STEPS)
        unknown = [await trainer.step(*batch) for batch in batches]
        engine.start_trace()
        known = await trainer.step(*batches[0])
    assert all(math.isnan(report.stall_s) for report in unknown)
    assert 0 <= known.stall_s < known.step_s


async def test_fp32_agrees_with_the_cpu_and_bf16_with_fp32() -> None:
    cpu = await outcome(LONE, steps=STEPS, device="cpu")
    fp32, bf16 = await on_gpu(), await on_gpu(precision="bf16")
    assert fp32.losses == pytest.approx(cpu.losses, rel=1e-6)
    # The bias of the keys has only rounding errors for a gradient, which AdamW makes as large as any other.
    names = [name for name in cpu.weights if not name.endswith("c_attn.bias")]
    assert max(distance(fp32.weights[name], cpu.weights[name]) for name in names) < 1e-4
    assert fp32.losses != bf16.losses
    assert bf16.losses == pytest.approx(cpu.losses, rel=1e-2)
    assert bf16.norms == pytest.approx(cpu.norms, rel=5e-2)


async def test_attention_of_whole_sequences_by_cudnn_gives_one_result_under_any_budget(soft_gpu: Any) -> None:
    async def trained(**engine_options: Any) -> Outcome:
        options = {"precision": "bf16", **engine_options}
        return await outcome(WHOLE, steps=STEPS, device="cuda:0", engine_options=options, recompute=True)

    plain = await trained()
    soft_gpu(attends=True)
    found = await trained()
    library = soft_gpu.opened[-1].library
    # Two layers of two row tiles, forward and backward in each step and forward again; and the trial before.
    assert library.calls > 3 * 4 * STEPS
    assert len(library.executed) < library.calls  # graphs ran work that was enqueued once
    assert found.losses != plain.losses
    assert found.losses == pytest.approx(plain.losses, rel=1e-2)
    assert found.norms == pytest.approx(plain.norms, rel=5e-2)
    assert_same_bits(await trained(device_memory=WHOLE.config.states_nbytes // 2), found)
    assert_same_bits(await trained(prefetch=0), found)


async def test_from_the_third_step_on_a_step_is_three_graphs_and_no_launch(soft_gpu: Any) -> None:
    async with Engine("cuda:0") as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        launches = []
        for tokens, targets in batches_of(LONE, 4):
            before = soft_gpu.opened[0].launches
            await trainer.step(tokens, targets)
            launches.append(soft_gpu.opened[0].launches - before)
        assert launches[0] == launches[1] > 300
        assert launches[2:] == [0, 0]
        assert soft_gpu.opened[0].graphs == 3 * 3
        assert engine.statistics().operations > 3 * 300


async def graphs_of(trainer: Trainer, steps: int, driver: Any) -> list[int]:
    """Return the number of graphs launched in each step."""
    counts = []
    for tokens, targets in batches_of(LONE, steps):
        before = driver.graphs
        await trainer.step(tokens, targets)
        counts.append(driver.graphs - before)
    return counts


async def test_a_program_that_lost_its_slots_is_captured_anew_and_its_old_graphs_are_destroyed(
    soft_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine("cuda:0") as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        driver, alive = soft_gpu.opened[0], Graphs(soft_gpu.opened[0], monkeypatch)
        counts = await graphs_of(trainer, 2, driver)
        for seed in range(3):
            counts += await graphs_of(trainer, 1, driver)
            other = await GPT2.create(engine, LONE.config, seed=seed, tile=LONE.tile)
            await other.loss(*batches_of(LONE, 1)[0])
        assert counts == [0, 3, 3, 3, 3]
        gc.collect()
        assert alive.count == 3 < alive.made


async def test_with_too_many_graphs_the_least_recently_used_programs_lose_theirs(
    soft_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    yardstick = await on_gpu(steps=5)
    monkeypatch.setattr("asynctile.execute.templates.NODES", 1)
    async with Engine("cuda:0") as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        alive, losses, counts = Graphs(soft_gpu.opened[-1], monkeypatch), [], []
        for index, (tokens, targets) in enumerate(batches_of(LONE, 5)):
            losses.append((await trainer.step(tokens, targets)).loss)
            counts.append(alive.count)
            for _ in range(2 * (index > 0)):
                await trainer.model.loss(tokens, targets)
            counts.append(alive.count)
        assert losses == yardstick.losses
        assert counts == [0, 0, 3, 1, 3, 1, 3, 1, 3, 1] and alive.made == 4 * (3 + 1)


class Graphs:
    """The graphs that a driver has made, and those that still exist."""

    def __init__(self, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.count = 0
        end, destroy = driver.end_capture, driver.destroy_graph

        def made(stream: int) -> Any:
            graph = end(stream)
            self.made += 1
            self.count += 1
            return graph

        def destroyed(graph: Any) -> None:
            self.count -= 1
            destroy(graph)

        monkeypatch.setattr(driver, "end_capture", made)
        monkeypatch.setattr(driver, "destroy_graph", destroyed)


async def test_caps_lent_and_returned_repeatedly_leave_a_program_its_graphs(soft_gpu: Any) -> None:
    async with Engine("cuda:0", device_memory=5 * STATES, host_memory=8 * STATES) as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        driver = soft_gpu.opened[0]
        assert await graphs_of(trainer, 3, driver) == [0, 3, 3]
        for graphs in (0, 3, 3):  # with less memory it is another program, whose first run uses coroutines
            async with engine.share(device_memory=3 * STATES, host_memory=STATES):
                assert await graphs_of(trainer, 1, driver) == [graphs]
            assert await graphs_of(trainer, 1, driver) == [3]


class Held:
    """A GPU that stops before the n-th capture of a graph until released. reached: set once the capture is there."""

    def __init__(self, engine: Engine, call: int) -> None:
        self._device, self._left = device_of(engine), call
        self._true = self._device.recorder.record
        self.reached, self.gate = threading.Event(), threading.Event()
        self._device.recorder.record = self._watched

    def _watched(self, *args: Any, **more: Any) -> Any:
        self._left -= 1
        if not self._left:
            self._device.driver.hold(self.gate, self._device.streams()[0].handle)
            self.reached.set()
        return self._true(*args, **more)

    def release(self) -> None:
        self._device.recorder.record = self._true
        self.gate.set()


@pytest.mark.parametrize("call", [law(1), 3])
async def test_a_step_cancelled_while_its_graphs_are_captured_leaves_the_model_unchanged(call: int) -> None:
    yardstick = await on_gpu(steps=5)
    async with Engine("cuda:0") as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        losses = []
        for index, (tokens, targets) in enumerate(batches_of(LONE, 5)):
            if index == 1:
                held = Held(engine, call)
                step = asyncio.ensure_future(trainer.step(tokens, targets))
                try:
                    await until(held.reached.is_set)
                    step.cancel()
                    await settle(engine)
                finally:
                    held.release()
                with pytest.raises(asyncio.CancelledError):
                    await step
                assert trainer.step_count == 1
            losses.append((await trainer.step(tokens, targets)).loss)
        assert losses == yardstick.losses
        assert_same_tensors(await trainer.model.state_dict(), yardstick.weights)


@pytest.mark.parametrize("options", [law({}), law({"clip_norm": 0.1}), {"update": "host"}], ids=str)
async def test_every_step_from_the_third_on_moves_the_planned_bytes(options: dict[str, Any]) -> None:
    options, cap = {"update": "device", **options}, SMALL.config.states_nbytes // 3
    plan = plan_step(SMALL.config, SMALL.work(**options), Machine(device="cuda:0", device_memory=cap))
    assert plan.comes_and_goes
    async with Engine("cuda:0", device_memory=cap) as engine:
        trainer = Trainer(await lively(engine, SMALL), OPTIMIZER, micro_batches=SMALL.micro_batches, **options)
        for number, batch in enumerate(batches_of(SMALL, 5)):
            report = await trainer.step(*batch)
            assert runtime_of(engine).tiers.top.arena.packed
            assert report.played is (number > 0)
            if number > 1:
                assert (report.uploaded_bytes, report.downloaded_bytes) == (plan.uploaded_bytes, plan.downloaded_bytes)
        assert report.device_peak_bytes <= cap


async def test_batches_of_changing_shape_never_take_more_of_the_gpu_than_the_cap(
    soft_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap holds each program but not the free slots of all of them, because a GPU's memory is freed slab by slab."""
    monkeypatch.setattr("asynctile.storage.slabs.SLAB_NBYTES", 64)
    cap = 160 << 10
    async with Engine("cuda:0", device_memory=cap) as engine:
        trainer = Trainer(await lively(engine, SMALL), OPTIMIZER)
        driver = soft_gpu.opened[0]
        slots = sum(pool.made * pool.slot_nbytes for pool in runtime_of(engine).tiers.top.arena.pools)
        beside = driver.memory()[1] - driver.memory()[0] - slots
        for batch, length in ((1, 5), (2, 17), (1, 24), (1, 3)):
            tokens = np.ones((batch, length), np.int32)
            await trainer.step(tokens, tokens)
            taken = driver.memory()[1] - driver.memory()[0] - beside
            assert taken <= cap, (batch, length)
        assert not runtime_of(engine).tiers.top.arena.divided
