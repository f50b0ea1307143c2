"""A played step that fails, is skipped or is cancelled stops at a mark, and the training goes on as if it had not begun.

These are the demands of tests/layers/test_step_failures.py and test_step_cancellations.py on coroutines, for the same step
played. test_interleaved.py tests other work between steps.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile import AsynctileError, DeviceError, Engine, TierError, TornModelError
from asynctile.ops import copy
from asynctile.program.needs import demand_of
from asynctile.program.program import UPDATE, Program
from asynctile.schedule.decide import decide
from asynctile.schedule.schedule import Kind, Schedule
from asynctile.share import runtime_of
from asynctile.storage.faults import Faults
from asynctile.storage.tile import Tile
from tests.by_hand import NBYTES, standing
from tests.execute.interleaving import BATCHES, PLACES, played, training
from tests.execute.traps import set_trap
from tests.inside_engine import schedule_of
from tests.laws import covering, law
from tests.layers.training import Tensors, assert_same_tensors, states_of
from tests.matmul import Matmul, engine_for

#: clip_norm and the place of updates, each tried on every place.
OPTIONS: dict[str, dict[str, Any]] = {
    "fused": {}, "two-phase": {"clip_norm": 0.3}, "updates on the host": {"update": "host"}, "kept": {"recompute": False},
}  # fmt: skip
#: (options, kernel, call) before the loss is known.
BEFORE = {
    "the first operation": ("fused", "embed_tokens", 1), "in a block": ("two-phase", "gelu", 2),
    "in the head": ("kept", "cross_entropy", 2), "before updates on the host": ("updates on the host", "gelu", 3),
}  # fmt: skip
_undisturbed: dict[Any, Tensors] = {}


#: Each place, and each of the options where it makes a difference.
CASES = [
    ("cpu", "two-phase"), ("under a cap", "fused"), ("under a cap", "updates on the host"),
    *map(law, [("resident", "updates on the host"), ("under a cap", "two-phase"), ("under a cap", "kept")]),
]  # fmt: skip


@pytest.fixture(params=CASES, ids=", ".join)
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of an engine, and of a trainer on it."""
    where, how = request.param
    return PLACES[where], OPTIONS[how]


async def undisturbed(options: dict[str, Any], *batches: int) -> Tensors:
    """Return weights and moments after these batches, by coroutines with everything in RAM."""
    key = (json.dumps(options), batches)
    if key not in _undisturbed:
        async with training(PLACES["cpu"], plays=False, **options) as (_, trainer):
            assert not any(await played(trainer, *batches))
            _undisturbed[key] = await states_of(trainer)
    return _undisturbed[key]


@pytest.mark.parametrize(("place", "at"), covering({name: PLACES[name] for name in ("under a cap", "cpu", "resident")}, BEFORE))
async def test_a_failure_before_the_loss_leaves_the_model_unchanged(place: dict[str, Any], at: tuple[str, str, int]) -> None:
    name, kernel, call = at
    options = OPTIONS[name]
    async with training(place, **options) as (engine, trainer):
        trap = set_trap(engine, kernel)
        assert await played(trainer, 0, 1) == [False, True]
        trap.spring_at(call)
        with pytest.raises(DeviceError, match=rf"step 3 failed before it changed the model: .*{kernel}.*can be repeated"):
            await trainer.step(*BATCHES[2])
        assert trap.has_sprung
        assert trainer.model.torn is None
        assert trainer.step_count == 2
        assert_same_tensors(await states_of(trainer), await undisturbed(options, 0, 1))
        assert (await played(trainer, 2, 3))[1], "back in play at the next border"
        assert_same_tensors(await states_of(trainer), await undisturbed(options, 0, 1, 2, 3))


async def test_a_failure_in_the_first_phase_of_a_clipped_step_leaves_the_model_unchanged(place: dict[str, Any]) -> None:
    options = OPTIONS["two-phase"]
    async with training(place, **options) as (engine, trainer):
        trap = set_trap(engine, "layernorm_backward")
        await played(trainer, 0, 1)
        trap.spring_at(4)
        with pytest.raises(DeviceError, match=r"step 3 failed before it changed the model"):
            await trainer.step(*BATCHES[2])
        assert trap.has_sprung
        assert (await played(trainer, 2, 3))[1]
        assert_same_tensors(await states_of(trainer), await undisturbed(options, 0, 1, 2, 3))


async def test_a_failure_among_the_updates_tears_the_model(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    place, options = case
    async with training(place, **options) as (engine, trainer):
        trap = set_trap(engine, "adamw")
        await played(trainer, 0, 1)
        trap.spring_at(3)
        with pytest.raises(TornModelError, match=r"step 3 failed after its first update.*adamw"):
            await trainer.step(*BATCHES[2])
        with pytest.raises(TornModelError, match="cannot step"):
            await trainer.step(*BATCHES[2])
        await trainer.model.release()
        left = engine.statistics()
        assert (left.device_used_bytes, left.host_used_bytes) == (0, 0)


@pytest.mark.parametrize("name", ["two-phase", law("updates on the host")])
async def test_a_loss_that_is_not_finite_skips_the_step(place: dict[str, Any], name: str) -> None:
    options = OPTIONS[name]
    async with training(place, **options) as (engine, trainer):
        trap = set_trap(engine, "cross_entropy", breaks=False)
        await played(trainer, 0, 1)
        trap.spring_at(3)  # in the last piece of the vocabulary, which reports
        report = await trainer.step(*BATCHES[2])
        assert (report.skipped, report.played, math.isnan(report.loss)) == (True, True, True)
        assert_same_tensors(await states_of(trainer), await undisturbed(options, 0, 1))
        assert (await played(trainer, 2, 3))[1]
        assert_same_tensors(await states_of(trainer), await undisturbed(options, 0, 1, 2, 3))


async def test_a_norm_that_is_not_finite_skips_a_clipped_step(place: dict[str, Any]) -> None:
    options = OPTIONS["two-phase"]
    async with training(place, **options) as (engine, trainer):
        trap = set_trap(engine, "sum_squares", breaks=False)
        await played(trainer, 0, 1)
        trap.spring_at(5)
        report = await trainer.step(*BATCHES[2])
        assert (report.skipped, report.played, math.isnan(report.grad_norm)) == (True, True, True)
        assert (await played(trainer, 2, 3))[1]
        assert_same_tensors(await states_of(trainer), await undisturbed(options, 0, 1, 2, 3))


async def test_a_gradient_that_is_not_finite_tears_a_fused_step(place: dict[str, Any]) -> None:
    async with training(place) as (engine, trainer):
        trap = set_trap(engine, "adamw", breaks=False)
        await played(trainer, 0, 1)
        trap.spring_at(5)
        with pytest.raises(TornModelError, match=r"a gradient of step 3 was not finite \(norm"):
            await trainer.step(*BATCHES[2])


async def test_a_played_step_counts_the_moves_of_its_schedule(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    place, options = case
    async with training(place, **options) as (engine, trainer):
        await played(trainer, 0, 1)
        before = engine.statistics()
        report = await trainer.step(*BATCHES[2])
        after = engine.statistics()
        schedule = schedule_of(engine)
        moved = {kind: sum(entry.nbytes for entry in schedule.entries if entry.kind is kind) for kind in Kind}
        assert (report.uploaded_bytes, report.downloaded_bytes) == (moved[Kind.UPLOAD], moved[Kind.DOWNLOAD])
        assert after.operations - before.operations == len(list(schedule.program.operations()))
        if "device_memory" in place:
            assert report.uploaded_bytes > 0
            assert after.device_peak_bytes <= place["device_memory"]


async def test_no_worker_passes_a_mark_at_which_an_input_gets_another_value(place: dict[str, Any]) -> None:
    program = Program("rewrites twice")
    given = program.input("given", (4, 8), np.float32)
    found = [Tile(f"found {index}", (4, 8), persistent=True) for index in range(3)]
    program.add(copy(given, found[0]))
    program.mark("first", rewrites=(given,))
    program.add(copy(given, found[1]))
    program.mark(UPDATE, rewrites=(given,))
    program.add(copy(given, found[2]))
    program.finish()
    demand = demand_of([program], found)

    async def run(engine: Engine, number: int) -> bool:
        async with runtime_of(engine).exclusive():
            job = await runtime_of(engine).start(program, demand, {"given": np.full((4, 8), number, np.float32)})
            for later, mark in enumerate(("first", UPDATE), 1):
                await job.until(mark)
                await job.put(given, np.full((4, 8), number + later, np.float32))
            await job.finish()
            return job.played

    async with Engine(**place) as engine:
        for number in (10, 20, 30):
            was_played = await runtime_of(engine).call(run(engine, number))
            assert [array[0, 0] for array in await runtime_of(engine).read_all(found)] == [number, number + 1, number + 2]
        assert was_played


async def test_a_cancelled_step_stops_at_a_mark_or_counts(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    place, options = case
    async with training(place, **options) as (engine, trainer):
        await played(trainer, 0, 1)
        for turns in (1, 2, 3, 5, 8, 13, 21):
            before = trainer.step_count
            step = asyncio.create_task(trainer.step(*BATCHES[before]))
            for _ in range(turns):
                await runtime_of(engine).call(asyncio.sleep(0))
            step.cancel()
            (ended,) = await asyncio.gather(step, return_exceptions=True)
            assert trainer.step_count == before or trainer.last_report.step == before + 1
            assert isinstance(ended, asyncio.CancelledError) or trainer.step_count == before + 1
            if trainer.step_count == 4:
                break
        done = trainer.step_count
        assert (await played(trainer, *range(done, 6)))[-1]
        assert_same_tensors(await states_of(trainer), await undisturbed(options, *range(6)))


async def test_a_schedule_made_while_its_step_is_cancelled_is_kept(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, made = threading.Event(), 0

    def counted(*args: Any) -> Schedule | None:
        nonlocal made
        made += 1
        begun.set()
        return decide(*args)

    monkeypatch.setattr("asynctile.execute.space.decide", counted)
    async with training(place) as (_, trainer):
        if "device_memory" not in place:  # there it is made before the first step
            assert await played(trainer, 0) == [False]
        step = asyncio.create_task(trainer.step(*BATCHES[trainer.step_count]))
        await asyncio.to_thread(begun.wait)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert (await played(trainer, *range(trainer.step_count, 2)))[-1]
        assert made == 1
        assert_same_tensors(await states_of(trainer), await undisturbed({}, 0, 1))


async def test_a_tile_that_an_abandoned_run_did_not_write_has_no_bytes() -> None:
    a, b, c = tiles = standing("a", "b", "c")
    program = Program("in two parts")
    program.add(copy(a, b))
    program.mark("half")
    program.add(copy(b, c))
    program.finish()
    async with Engine("emulated", device_memory=4 * NBYTES) as engine:
        await runtime_of(engine).reserve(demand_of([program], tiles))
        await runtime_of(engine).store([(a, np.ones(a.shape, np.float32))])

        async def job() -> list[Tile]:
            async with runtime_of(engine).exclusive():
                run = await runtime_of(engine).start(program, demand_of([program], tiles), {})
                await run.until("half")
                return await run.abandon()

        assert await runtime_of(engine).call(job()) == []
        assert (await runtime_of(engine).read(b) == 1).all()
        with pytest.raises(AsynctileError, match="c was never written"):
            await runtime_of(engine).read(c)


async def test_a_run_that_cannot_load_its_tiles_raises_why_and_loses_only_its_results(tmp_path: Path) -> None:
    faults, work = Faults(seed=3), Matmul()
    async with engine_for(work, tmp_path, "emulated", 6, 5, wrap_spill=faults.wrap) as engine:
        await work.prepare(engine)
        faults.arm("eio_read", lasting=True)

        async def job() -> list[Tile]:
            async with runtime_of(engine).exclusive():
                run = await runtime_of(engine).start(work.program, work.demand, {})
                with pytest.raises(TierError):
                    await run.finish()
                return await run.abandon()

        assert set(await runtime_of(engine).call(job())) <= set(work.tiles["c"].values())
        faults.disarm()
        await work.run(engine)
        assert np.allclose(await work.result(engine), work.a @ work.b, atol=1e-3)
