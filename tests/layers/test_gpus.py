"""Trainings on several GPUs whose drivers run on the CPU: one digest however many carry the replicas, and the planned bytes.

tests/device/test_gpus.py tests the GPUs of an engine without a training.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from asynctile import BudgetError, DeviceError, Engine, TornModelError
from asynctile.device.cuda import RESERVE_NBYTES
from asynctile.layers import Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from tests.laws import covering, law
from tests.layers.stories import tell
from tests.layers.test_devices import CLIPS, RUNS, lanes_of
from tests.layers.test_devices_between import drawn
from tests.layers.test_replicas_trained import BATCHES, REPLICAS, SHAPE, STATES, trained, yardstick
from tests.layers.training import OPTIMIZER, assert_same_bits, assert_same_tensors, batches_of, lively, moments_of

pytestmark = pytest.mark.usefixtures("soft_gpu")


def gpus(count: int) -> str:
    return "cuda:0" if count == 1 else f"cuda:0-{count - 1}"


@pytest.mark.parametrize(
    ("count", "cap", "clip_norm", "prepare", "precision"),
    covering([2, 4, 3], ["tight", "roomy", "none"], CLIPS, RUNS, ["bf16", "fp32"], few=1),
)
async def test_no_number_of_gpus_changes_a_bit(
    count: int, cap: str, clip_norm: float | None, prepare: Any, precision: str, soft_gpu: Any
) -> None:
    expected = await yardstick("cuda:0", precision, clip_norm)
    soft_gpu(seed=count)
    caps = {"tight": 30 << 10, "roomy": STATES, "none": None}
    options = {"device_memory": caps[cap], "precision": precision}
    found = await trained(gpus(count), options, clip_norm=clip_norm, prepare=prepare)
    assert_same_bits(found, expected)
    assert found.device_peak_bytes <= (caps[cap] or STATES * 10)


@pytest.mark.parametrize(("count", "update", "clip_norm", "prepare"), [
    (2, "auto", 0.1, RUNS["played"]), law(4, "auto", 0.1, RUNS["played"]), law(2, "host", None, RUNS["played"]),
    law(2, "device", None, RUNS["by coroutines"]),
    law(3, "device", 0.1, RUNS["played"]), law(3, "host", 0.1, RUNS["by coroutines"]), law(4, "host", None, RUNS["played"]),
])  # fmt: skip
async def test_no_folder_and_no_update_in_ram_below_several_gpus_changes_a_bit(
    count: int, update: str, clip_norm: float | None, prepare: Any, soft_gpu: Any, tmp_path: Path
) -> None:
    expected = await yardstick("cuda:0", clip_norm=clip_norm)
    soft_gpu(seed=count)
    caps = {"device_memory": max(int(0.5 * STATES), 30 << 10), "host_memory": STATES + (300 << 10), "spill": tmp_path}
    found = await trained(gpus(count), caps, update=update, clip_norm=clip_norm, prepare=prepare)
    assert_same_bits(found, expected)
    assert list(tmp_path.iterdir()) == []


async def test_several_gpus_agree_with_the_cpu() -> None:
    cpu, found = await yardstick(), await trained(gpus(2))
    assert found.losses == pytest.approx(cpu.losses, rel=1e-6)
    assert found.norms == pytest.approx(cpu.norms, rel=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("before", "after"), [(1, 2), law(4, 2), law(1, 4), law(3, 1)])
async def test_a_run_resumed_on_another_number_of_gpus_has_equal_bits(before: int, after: int, tmp_path: Path) -> None:
    async with Engine(gpus(before), device_memory=STATES) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c")
    async with Engine(gpus(after), device_memory=STATES) as engine:
        again = await Trainer.load(engine, tmp_path / "c")
        for batch in BATCHES[1:]:
            await again.step(*batch)
        expected = await yardstick("cuda:0")
        assert_same_tensors(await again.model.state_dict(), expected.weights)
        assert_same_tensors(await moments_of(again), expected.moments)


@pytest.mark.parametrize(("count", "share", "update", "options"), [
    (2, 0.7, "host", {"clip_norm": 0.1}), law(4, None, "device", {}), law(2, 0.7, "auto", {}),
    law(4, 0.7, "device", {"clip_norm": 0.1}), law(3, 0.7, "device", {"recompute": False}),
])  # fmt: skip
async def test_every_played_step_passes_and_moves_the_planned_bytes_in_graphs_alone(
    count: int, share: float | None, update: str, options: dict[str, Any], soft_gpu: Any
) -> None:
    cap = None if share is None else int(share * STATES)
    work = SHAPE.work(update=update, **options)
    plan = plan_step(SHAPE.config, work, Machine(device=gpus(count), device_memory=cap))
    assert plan.devices == count and plan.passed_bytes > 0
    async with Engine(gpus(count), device_memory=cap) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS, update=update, **options)
        for number, batch in enumerate(batches_of(SHAPE, 5)):
            before = soft_gpu.node.passed_nbytes, [driver.launches for driver in soft_gpu.opened]
            report = await trainer.step(*batch)
            if number > 1:
                moved = report.uploaded_bytes, report.downloaded_bytes, report.passed_bytes
                assert moved == (plan.uploaded_bytes, plan.downloaded_bytes, plan.passed_bytes)
                assert soft_gpu.node.passed_nbytes - before[0] == plan.passed_bytes
                assert report.played and [driver.launches for driver in soft_gpu.opened] == before[1]
    first, *others = soft_gpu.opened
    assert first.graphs >= 3 and not any(driver.graphs for driver in others), "one graph holds the work of all"


async def test_a_step_that_cannot_be_captured_across_gpus_is_issued_with_the_same_bits(
    soft_gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the driver refuses a copy between two GPUs in a capture."""

    def refuse(engine: Engine) -> None:
        driver = soft_gpu.opened[-1]
        copy = driver.copy

        def refusing(target: int, source: int, nbytes: int, stream: int) -> None:
            if driver.streams[stream].capture is not None and soft_gpu.node.owner(source) == 0:
                raise RuntimeError("the driver says no")
            copy(target, source, nbytes, stream)

        driver.copy = refusing

    with caplog.at_level(logging.WARNING, "asynctile"):
        found = await trained(gpus(2), prepare=refuse)
    assert sum("the driver says no" in message for message in caplog.messages) == 1
    assert not any(driver.graphs for driver in soft_gpu.opened), "no piece was launched, though some could be captured"
    assert_same_bits(found, await yardstick("cuda:0"))  # opens a driver of its own


@pytest.mark.parametrize("plays", [True, law(False)])
async def test_a_kernel_that_fails_on_the_second_gpu_fails_the_step_and_the_engine_closes(plays: bool, soft_gpu: Any) -> None:
    async with Engine(gpus(2)) as engine:
        engine.plays = plays
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        for batch in BATCHES:
            await trainer.step(*batch)
        second = soft_gpu.opened[1]
        second.error = RuntimeError("an illegal address")
        with pytest.raises((DeviceError, TornModelError), match=r"the GPU failed at or before .*an illegal address"):
            await trainer.step(*BATCHES[0])
        with pytest.raises((DeviceError, TornModelError)):
            await trainer.step(*BATCHES[0])
        assert soft_gpu.opened[0].error is None
    assert [driver.streams for driver in soft_gpu.opened] == [{}, {}]


@pytest.mark.laws
async def test_shares_of_several_gpus_take_turns_and_change_no_bit(soft_gpu: Any) -> None:
    soft_gpu(seed=7)
    async with (
        Engine(gpus(2), device_memory=5 * STATES, host_memory=16 * STATES) as engine,
        engine.share(device_memory=2 * STATES, host_memory=6 * STATES) as share,
    ):
        trainers = [Trainer(await lively(one, SHAPE), OPTIMIZER, replicas=REPLICAS) for one in (engine, share)]

        async def run(trainer: Trainer) -> list[float]:
            return [report.loss async for report in trainer.run(batches_of(SHAPE, 3))]

        losses = await asyncio.gather(*map(run, trainers))
    expected = await yardstick("cuda:0")
    assert losses == [expected.losses] * 2


async def test_a_trace_shows_the_kernels_and_copies_of_every_gpu(tmp_path: Path) -> None:
    async with Engine(gpus(2), device_memory=STATES) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        await trainer.step(*BATCHES[0])
        engine.start_trace(tmp_path / "t.json")
        report = await trainer.step(*BATCHES[1])
        engine.stop_trace()
        assert 0 <= report.stall_s < report.step_s
    lanes = {f"{lane}:{gpu}" for lane in ("compute", "upload", "download", "peer") for gpu in (0, 1)}
    assert lanes <= lanes_of(tmp_path / "t.json")


async def test_validations_and_texts_between_steps_change_no_bit(soft_gpu: Any) -> None:
    soft_gpu(seed=2)
    async with Engine(gpus(2), device_memory=STATES) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        losses = []
        for batch in BATCHES:
            losses.append((await trainer.step(*batch)).loss)
            await trainer.model.loss(*batch)
            assert len([token async for token in trainer.model.generate([1, 2], max_new_tokens=3)]) == 3
        expected = await yardstick("cuda:0")
        assert losses == expected.losses
        assert_same_tensors(await trainer.model.state_dict(), expected.weights)


@pytest.mark.laws
@pytest.mark.parametrize(("seed", "where", "plays"), [
    (24, "all there", True), (22, "over a file", True), (5, "near the floor", True), (35, "under a cap", False),
    (34, "over a file", True), (20, "all there", True), (37, "near the floor", True),
])  # fmt: skip
async def test_a_story_on_two_gpus_has_the_numbers_and_bits_of_one(
    seed: int, where: str, plays: bool, soft_gpu: Any
) -> None:
    """Other work of the engine stands between and beside steps; a share trains, steps are cancelled, the disk fails."""
    options, actions = drawn(seed)
    more = {"device_memory": 30 << 10} if where == "near the floor" else {}
    expected, _, states = await tell(where, options, actions, seed, plays=False, **more)
    soft_gpu(seed=seed)
    found, played, others = await tell(where, options, actions, seed, plays=plays, device=gpus(2), **more)
    assert any(played) is plays
    assert found == expected, (options, actions)
    assert_same_tensors(others, states)


async def test_an_engine_of_several_gpus_leaves_no_memory_and_no_pinned_ram(soft_gpu: Any) -> None:
    await trained(gpus(3))
    gc.collect()
    assert len(soft_gpu.opened) == 3
    for driver in soft_gpu.opened:
        assert driver.memory()[0] == driver.memory()[1]
        assert (driver.pinned, driver.streams, driver.events) == ({}, {}, {})


def test_every_gpu_must_have_the_memory_that_is_asked_of_each(monkeypatch: pytest.MonkeyPatch, soft_gpu: Any) -> None:
    def opens(name: str) -> Any:
        soft_gpu(nbytes=RESERVE_NBYTES + (64 << 20 if name == "cuda:0" else 16 << 20))
        return soft_gpu.open(name)

    monkeypatch.setattr("asynctile.device.open_driver", opens)
    with pytest.raises(BudgetError, match=r"cuda:1 has 1\d\.\d+ MiB for tiles: .*lower device_memory \(now 32\.00 MiB\)"):
        Engine(gpus(2), device_memory="32MiB")
    assert [driver.streams for driver in soft_gpu.opened] == [{}, {}]
