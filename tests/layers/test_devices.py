"""Trainings of four replicas in an engine of several devices: one digest however many carry them, and the planned bytes."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.layers import Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.model import model_state_of
from asynctile.layers.plan import Plan, plan_step
from tests.inside_engine import life_of
from tests.laws import covering, law
from tests.layers.test_replicas_trained import BATCHES, REPLICAS, SHAPE, STATES, by_coroutines, trained, yardstick
from tests.layers.training import (
    OPTIMIZER,
    Outcome,
    assert_same_bits,
    assert_same_tensors,
    batches_of,
    floor_of,
    lively,
    moments_of,
    outcome,
)

RUNS = {"played": lambda _: None, "by coroutines": by_coroutines}
CLIPS = {"fused": None, "clipped": 0.1}


def emulated(devices: int) -> str:
    return "emulated" if devices == 1 else f"emulated*{devices}"


@pytest.mark.parametrize(
    ("devices", "cap", "clip_norm", "prepare"), covering([2, 3, 4, 1], ["tight", "roomy", "none"], CLIPS, RUNS, few=2)
)
async def test_no_number_of_devices_changes_a_bit(devices: int, cap: str, clip_norm: float | None, prepare: Any) -> None:
    caps = {"tight": await floor_of(SHAPE), "roomy": STATES // 2, "none": None}
    options = {"device_memory": caps[cap]}
    found = await trained(emulated(devices), options, clip_norm=clip_norm, prepare=prepare)
    assert_same_bits(found, await yardstick(clip_norm=clip_norm))
    assert found.device_peak_bytes <= (caps[cap] or STATES * 10)


@pytest.mark.parametrize(
    ("devices", "update", "clip_norm", "prepare"), covering([2, 4, 3], ["host", "device", "auto"], CLIPS, RUNS, few=1)
)
async def test_no_spill_folder_below_several_devices_changes_a_bit(
    devices: int, update: str, clip_norm: float | None, prepare: Any, tmp_path: Path
) -> None:
    caps = {"device_memory": int(0.3 * STATES), "host_memory": int(0.8 * STATES), "spill": tmp_path}
    found = await trained(emulated(devices), caps, update=update, clip_norm=clip_norm, prepare=prepare)
    assert_same_bits(found, await yardstick(clip_norm=clip_norm))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("carriers", "clip_norm", "prepare"), covering([(0, 0, 0, 1), (0, 1, 0, 1), (0, 1, 1, 1)], CLIPS, RUNS, few=2)
)
async def test_no_table_of_replicas_changes_a_bit(
    carriers: tuple[int, ...], clip_norm: float | None, prepare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await yardstick(clip_norm=clip_norm)
    monkeypatch.setattr("asynctile.layers.trainer.table", lambda *_: carriers)
    found = await trained("emulated*2", {"device_memory": STATES // 2}, clip_norm=clip_norm, prepare=prepare)
    assert_same_bits(found, expected)


@pytest.mark.laws
@pytest.mark.parametrize("clip_norm", CLIPS.values(), ids=CLIPS)
async def test_after_twenty_steps_the_bits_are_those_of_one_device(
    clip_norm: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(device: str, **caps: Any) -> Outcome:
        return await outcome(SHAPE, steps=20, device=device, engine_options=caps, replicas=REPLICAS, clip_norm=clip_norm)

    expected = await found("cpu")
    for devices, share in product((1, 2, 4), (0.15, 0.3, 0.6, 3.0)):
        assert_same_bits(await found(emulated(devices), device_memory=int(share * STATES)), expected)
    caps = {"device_memory": int(0.3 * STATES), "host_memory": int(0.8 * STATES), "spill": tmp_path}
    assert_same_bits(await found("emulated*4", **caps), expected)
    monkeypatch.setattr("asynctile.layers.trainer.table", lambda *_: (0, 0, 0, 1))
    assert_same_bits(await found("emulated*2", device_memory=STATES // 2), expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("before", "after"), [(3, 2), law(1, 4), law(4, 1), law(2, 3)])
async def test_a_run_resumed_on_another_number_of_devices_has_equal_bits(before: int, after: int, tmp_path: Path) -> None:
    async with Engine(emulated(before), device_memory=STATES // 3) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        await trainer.step(*BATCHES[0])
        await trainer.save(tmp_path / "c")
    async with Engine(emulated(after), device_memory=STATES // 4) as engine:
        again = await Trainer.load(engine, tmp_path / "c")
        for batch in BATCHES[1:]:
            await again.step(*batch)
        expected = await yardstick()
        assert_same_tensors(await again.model.state_dict(), expected.weights)
        assert_same_tensors(await moments_of(again), expected.moments)


def planned(devices: int, cap: int | None, update: str, **options: Any) -> Plan:
    machine = Machine(device=emulated(devices), device_memory=cap)
    return plan_step(SHAPE.config, SHAPE.work(update=update, **options), machine)


@pytest.mark.parametrize(("devices", "share", "update", "options"), [
    (4, 0.3, "auto", {}), (2, 0.15, "device", {"clip_norm": 0.1}), law(3, None, "host", {}),
    law(4, 0.15, "device", {}), law(4, 0.4, "host", {"clip_norm": 0.1}), law(3, 0.3, "device", {"recompute": False}),
    law(2, 3.0, "auto", {}), law(2, None, "device", {}), law(3, 0.4, "auto", {"clip_norm": 0.1}),
])  # fmt: skip
async def test_every_step_after_the_first_moves_the_planned_bytes(
    devices: int, share: float | None, update: str, options: dict[str, Any]
) -> None:
    cap = None if share is None else int(share * STATES)
    plan = planned(devices, cap, update, **options)
    async with Engine(emulated(devices), device_memory=cap) as engine:
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS, update=update, **options)
        before = engine.statistics().operations
        reports = [report async for report in trainer.run(batches_of(SHAPE, 4))]
        assert engine.statistics().operations - before == 4 * plan.operations
    assert (plan.devices, [report.played for report in reports]) == (devices, [False, True, True, True])
    moved = [(report.uploaded_bytes, report.downloaded_bytes, report.passed_bytes) for report in reports]
    assert moved[1:] == [(plan.uploaded_bytes, plan.downloaded_bytes, plan.passed_bytes)] * 3 and plan.passed_bytes > 0
    assert reports[-1].device_peak_bytes == plan.device_peak_bytes


def test_a_plan_supposes_the_room_and_the_cores_that_an_engine_gives_each_device() -> None:
    one, four = (Machine(device=emulated(devices)) for devices in (1, 4))
    for (device, ram), devices in ((one.rooms, 1), (four.rooms, 4)):
        assert device.nbytes is not None and ram.nbytes is not None
        assert device.nbytes * devices == pytest.approx(ram.nbytes, rel=0.2)  # RAM that others use comes and goes
    devices = life_of(Engine("emulated*4")).devices
    assert four.cores_of_each == devices[0].threads


def lanes_of(trace: Path) -> set[str]:
    """Return the lanes on which a trace shows work."""
    events = json.loads(trace.read_text())
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return {tracks.get(event["tid"], "").partition(" ")[0] for event in events if event["ph"] == "X"}


@pytest.mark.parametrize("prepare", RUNS.values(), ids=RUNS)
async def test_a_trace_shows_the_kernels_and_copies_of_every_device(prepare: Any, tmp_path: Path) -> None:
    async with Engine("emulated*2", device_memory=STATES // 2) as engine:
        prepare(engine)
        trainer = Trainer(await lively(engine, SHAPE), OPTIMIZER, replicas=REPLICAS)
        await trainer.step(*BATCHES[0])
        engine.start_trace(tmp_path / "t.json")
        await trainer.step(*BATCHES[1])
        engine.stop_trace()
    lanes = {f"{lane}:{device}" for lane in ("compute", "upload", "download", "peer") for device in (0, 1)}
    assert lanes <= lanes_of(tmp_path / "t.json")


async def test_more_devices_than_replicas_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    async with Engine("cpu") as engine:
        await Trainer(await lively(engine, SHAPE), replicas=2).save(tmp_path / "c")
    async with Engine("emulated*4", device_memory=STATES) as engine:
        with pytest.raises(ValueError, match="4 devices cannot share 2 replicas"):
            await Trainer.load(engine, tmp_path / "c")
        assert engine.statistics().host_used_bytes == 0
        model = await lively(engine, SHAPE)
        with pytest.raises(ValueError, match="4 devices cannot share 1 replica; choose replicas") as caught:
            Trainer(model)
        assert "\n" not in str(caught.value) and not model_state_of(model).has_moments


@pytest.mark.parametrize(("devices", "cores", "times"), [(1, 4, 1), (2, 4, 2), (3, 2, 2)])
async def test_the_rate_of_products_is_that_of_all_devices_that_compute_at_once(
    devices: int, cores: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measured(*_: Any) -> float:
        return 5.0

    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr("asynctile.layers.trainer.measure_gemms", measured)
    async with Engine(emulated(devices)) as engine:
        trainer = Trainer(await lively(engine, SHAPE), replicas=REPLICAS)
        assert await trainer.gemm_rate(SHAPE.batch, SHAPE.length) == times * 5.0
