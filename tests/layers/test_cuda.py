"""Trainings on a GPU whose driver and kernels run on the CPU (tests/cuda): the law of equal bits, graphs, precisions.

tests/gpu repeats the important ones on a real GPU.

Long because it holds all trainings on that GPU: each law is checked on the same small training.
"""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import Engine
from asynctile.layers import GPT2, Trainer
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of
from tests.inside_engine import device_of
from tests.laws import covering
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
    moments_of,
    outcome,
)
from tests.settle import HANG_S, settle, until

STEPS = 4  # step 1 loads tiles, step 2 captures graphs, later steps replay them
#: Several whole sequences in each of two row tiles, heads of 16 columns.
WHOLE = make_shape(32, 2, 35, 24, tile=32, batch=6, length=10, micro_batches=2)
STATES = LONE.config.states_nbytes
_resident: dict[str, Outcome] = {}

pytestmark = pytest.mark.usefixtures("soft_gpu")


async def on_gpu(*, steps: int = STEPS, **options: Any) -> Outcome:
    engine_options = {key: options.pop(key) for key in list(options) if key in ENGINE_OPTIONS}
    async with asyncio.timeout(HANG_S):
        return await outcome(LONE, steps=steps, device="cuda:0", engine_options=engine_options, **options)


ENGINE_OPTIONS = ("device_memory", "host_memory", "spill", "prefetch", "precision")


async def resident(precision: str) -> Outcome:
    if precision not in _resident:
        _resident[precision] = await on_gpu(precision=precision)
    return _resident[precision]


PRECISIONS = ["fp32", "bf16"]


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize(("share", "prefetch", "precision"), covering([0.25, 0.5], [0, 2], PRECISIONS))
async def test_no_budget_and_no_prefetch_changes_a_bit(share: float, prefetch: int, precision: str) -> None:
    cap = max(int(share * STATES), 22 << 10)
    found = await on_gpu(device_memory=cap, prefetch=prefetch, precision=precision)
    assert_same_bits(found, await resident(precision))
    assert 0 < found.device_peak_bytes <= cap


@pytest.mark.parametrize(
    ("update", "clip_norm", "precision"), covering(["device", "host", "auto"], {"two-phase": 1e30, "fused": None}, PRECISIONS)
)
async def test_no_place_of_the_update_changes_a_bit(update: str, clip_norm: float | None, precision: str) -> None:
    found = await on_gpu(device_memory=STATES // 2, precision=precision, update=update, clip_norm=clip_norm)
    assert_same_bits(found, await resident(precision))


async def test_updates_on_the_host_over_a_disk_change_no_bit(tmp_path: Path, precision: str) -> None:
    found = await on_gpu(
        device_memory=STATES // 2, host_memory=STATES // 2 + (300 << 10), spill=tmp_path, precision=precision, update="host"
    )
    assert_same_bits(found, await resident(precision))


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_delay_of_a_stream_changes_a_bit(seed: int, soft_gpu: Any) -> None:
    yardstick = await resident("fp32")
    soft_gpu(seed=seed)
    assert_same_bits(await on_gpu(device_memory=STATES // 2, prefetch=8), yardstick)
    assert_same_bits(await on_gpu(), yardstick)


@pytest.mark.parametrize(
    ("recompute", "clip_norm", "precision"), covering([False, True], {"two-phase": 1e30, "fused": None}, PRECISIONS)
)
async def test_no_mode_changes_a_bit(recompute: bool, clip_norm: float | None, precision: str) -> None:
    found = await on_gpu(recompute=recompute, clip_norm=clip_norm, precision=precision)
    assert_same_bits(found, await resident(precision))


async def test_a_step_reports_its_wait_for_copies_while_it_is_traced_and_nan_otherwise() -> None:
    async with asyncio.timeout(HANG_S), Engine("cuda:0", device_memory=STATES // 2) as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER)
        batches = batches_of(LONE, STEPS)
        unknown = [await trainer.step(*batch) for batch in batches]
        engine.start_trace()
        known = await trainer.step(*batches[0])
    assert all(math.isnan(report.stall_s) for report in unknown)
    assert 0 <= known.stall_s < known.step_s


async def test_clipping_changes_no_bit_between_graphs_and_single_launches() -> None:
    graphs = await on_gpu(clip_norm=0.1)
    assert min(graphs.norms) > 0.1
    assert_same_bits(await on_gpu(clip_norm=0.1, prefetch=0), graphs)
    assert_same_bits(await on_gpu(clip_norm=0.1, device_memory=STATES // 2), graphs)


async def test_a_disk_below_ram_changes_no_bit(tmp_path: Path, precision: str) -> None:
    found = await on_gpu(
        device_memory=STATES // 2, host_memory=STATES // 2 + (300 << 10), spill=tmp_path, precision=precision
    )
    assert_same_bits(found, await resident(precision))


async def test_fp32_agrees_with_the_cpu_and_bf16_with_fp32() -> None:
    cpu = await outcome(LONE, steps=STEPS, device="cpu")
    fp32, bf16 = await resident("fp32"), await resident("bf16")
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


async def test_work_between_two_steps_does_not_hinder_graphs(soft_gpu: Any) -> None:
    yardstick = await on_gpu(steps=6)
    async with Engine("cuda:0") as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        losses = []
        for index, (tokens, targets) in enumerate(batches_of(LONE, 6)):
            losses.append((await trainer.step(tokens, targets)).loss)
            await trainer.model.loss(tokens, targets)
            if index == 1:
                await trainer.model.logits(tokens)
            if index == 3:  # takes slots, so the graphs are captured anew
                other = await GPT2.create(engine, LONE.config, seed=9, tile=LONE.tile)
                await other.loss(tokens, targets)
        assert losses == yardstick.losses
        assert_same_tensors(await trainer.model.state_dict(), yardstick.weights)
        assert_same_tensors(await moments_of(trainer), yardstick.moments)


async def test_a_step_without_a_finite_loss_is_skipped_by_graphs_too() -> None:
    yardstick = await on_gpu(steps=4)
    async with Engine("cuda:0") as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        batches = batches_of(LONE, 4)
        for tokens, targets in batches[:3]:
            await trainer.step(tokens, targets)
        parameter = model_state_of(trainer.model).parameters["transformer.ln_f.bias"]
        kept = await model_state_of(trainer.model).gather(parameter, parameter.weights)
        tile = parameter.weights[0, 0]
        await runtime_of(engine).store([(tile, np.full(tile.shape, np.nan, np.float32))])
        assert (await trainer.step(*batches[3])).skipped
        await runtime_of(engine).store([(tile, kept[parameter.index(0, 0)])])
        report = await trainer.step(*batches[3])
        assert report.loss == yardstick.losses[3]
        assert_same_tensors(await trainer.model.state_dict(), yardstick.weights)


class Held:
    """A GPU that stops before the n-th call of `method` on the engine's device, or on its recorder, until released.

    reached: set once the call is there.
    """

    def __init__(self, engine: Engine, method: str, call: int) -> None:
        self._device, self._method, self._left = device_of(engine), method, call
        self._owner = self._device if hasattr(self._device, method) else self._device.recorder
        self._true = getattr(self._owner, method)
        self.reached, self.gate = threading.Event(), threading.Event()
        setattr(self._owner, method, self._watched)

    def _watched(self, *args: Any, **more: Any) -> Any:
        self._left -= 1
        if not self._left:
            self._device.driver.hold(self.gate, self._device.streams()[0].handle)
            self.reached.set()
        return self._true(*args, **more)

    def release(self) -> None:
        setattr(self._owner, self._method, self._true)
        self.gate.set()


#: Where a step is cancelled: issued, captured, replayed; and whether it counts all the same.
CANCELS = [
    ("upload", 1, False), ("record", 1, False), ("record", 3, False), ("replay", 1, False), ("replay", 3, True),
]  # fmt: skip


@pytest.mark.parametrize(("method", "call", "counts"), CANCELS)
async def test_a_cancelled_step_leaves_the_model_unchanged_or_counts_and_graphs_go_on(
    method: str, call: int, counts: bool
) -> None:
    yardstick = await on_gpu(steps=5)
    cancelled = {"upload": 0, "record": 1, "replay": 3}[method]
    async with Engine("cuda:0") as engine:
        trainer = Trainer(await lively(engine, LONE), OPTIMIZER, micro_batches=LONE.micro_batches)
        losses = []
        for index, (tokens, targets) in enumerate(batches_of(LONE, 5)):
            if index == cancelled:
                held = Held(engine, method, call)
                step = asyncio.ensure_future(trainer.step(tokens, targets))
                try:
                    await until(held.reached.is_set)
                    step.cancel()
                    await settle(engine)
                finally:
                    held.release()
                with pytest.raises(asyncio.CancelledError):
                    await step
                assert trainer.step_count == index + counts
            if trainer.step_count == index:
                await trainer.step(tokens, targets)
            losses.append(trainer.last_report.loss)
        assert losses == yardstick.losses
        assert_same_tensors(await trainer.model.state_dict(), yardstick.weights)


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


async def test_an_engine_leaves_no_memory_and_no_pinned_ram(soft_gpu: Any) -> None:
    await on_gpu(steps=3)
    gc.collect()
    driver = soft_gpu.opened[0]
    assert driver.memory()[0] == driver.memory()[1]
    assert not driver.pinned
    assert not driver.streams
