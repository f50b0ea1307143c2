"""Packed steps, played and by coroutines: the bits of any other way under any packing, the planned bytes, other work between.

tests/schedule/test_packing.py tests whether a packing is valid, and test_decide.py a schedule of one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from asynctile import AsynctileError, DeviceError, Engine
from asynctile.cli.stress.place import EngineSetup, StressEngine
from asynctile.cli.stress.work import Workload
from asynctile.cli.stress.writer import write_program
from asynctile.layers import Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from asynctile.ops import fill
from asynctile.program.program import Program
from asynctile.schedule.decide import Space
from asynctile.schedule.packing import Packing
from asynctile.share import Share, runtime_of
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.tile import Tile
from tests.execute.interleaving import BATCHES, SHORT, a_weight, by_coroutines, played, training
from tests.execute.traps import set_trap
from tests.inside_engine import device_of
from tests.laws import covering, examples
from tests.layers.training import OPTIMIZER, assert_same_tensors, lively, states_of
from tests.schedule.packings import check, drawn

#: Options under which tiles are loaded and evicted in the memory that is computed in.
CAPPED: dict[str, Any] = {"device": "emulated", "device_memory": SHORT.config.states_nbytes // 3}


def is_packed(share: Share) -> bool:
    return runtime_of(share).tiers.top.arena.packed


def by_chance(seed: int) -> Callable[..., Packing]:
    """Return a stand-in for `plan_top` that draws a random valid packing."""

    def found(program: Program, space: Space, shared: Collection[Tile], ahead: int | None) -> Packing:
        over_link, cap = space.ram is not None, space.top.cap
        assert cap is not None and not shared and ahead is None
        packing = drawn(program, cap, alignment=space.top.alignment, over_link=over_link, chance=random.Random(seed))
        check(packing, over_link=over_link)
        return packing

    return found


def without_player(engine: Engine) -> None:
    """Make an engine play nothing, as on a device without workers: repeated runs use coroutines that follow the packing."""
    device_of(engine).workers = None


def place_of(work: Workload, device: str, share: float) -> EngineSetup:
    demand = work.demand.rounded(PAGE).alone() if device == "cpu" else work.demand
    cap = int(demand.floor_nbytes + share * (demand.resident_nbytes - demand.floor_nbytes))
    if device == "cpu":
        return EngineSetup(device=device, host_memory=cap)
    below = work.demand.rounded(PAGE).resident_nbytes
    return EngineSetup(device="emulated", device_memory=cap, host_memory=below // 2 if device == "three tiers" else None,
                 spill=device == "three tiers")  # fmt: skip


async def run_thrice(work: Workload, place: EngineSetup, folder: Path, *, plays: bool) -> None:
    async with StressEngine(place, folder) as engine:
        if not plays:
            without_player(engine)
        await work.store(engine)
        values = work.values
        for number in range(3):
            right = work.interpret(values)  # here, because BLAS has one thread while an engine is open
            values = right.tiles
            found = await work.run(engine)
            assert found.played is (plays and number > 0)
            assert is_packed(engine)
            assert [found.outputs[key].tobytes() for key in right.outputs] == [one.tobytes() for one in right.outputs.values()]
            assert np.array(found.numbers).tobytes() == np.array(right.numbers).tobytes()
            (await work.read(engine, found)).expect(right)
        cap = runtime_of(engine).tiers.top.arena.cap
        assert cap is not None and runtime_of(engine).tiers.top.ledger.peak_nbytes <= cap
        await work.release(engine)
        after = engine.statistics()
        assert (after.device_used_bytes, after.host_used_bytes, after.spill_used_bytes) == (0, 0, 0)


@examples(8, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 1 << 32), share=st.floats(0.02, 0.5), device=st.sampled_from(["emulated", "three tiers", "cpu"]),
       plays=st.booleans())  # fmt: skip
def test_any_packing_of_any_program_gives_the_bits_of_a_run(
    seed: int, share: float, device: str, plays: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = write_program(random.Random(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asynctile.schedule.decide.plan_top", by_chance(seed))
        place = place_of(work, device, share)
        asyncio.run(run_thrice(work, place, tmp_path_factory.mktemp("spill"), plays=plays or device == "cpu"))


@pytest.mark.parametrize(
    ("options", "plays"),
    covering(
        [{"clip_norm": 0.3}, {"update": "host"}, {}, {"recompute": False}], {"played": True, "by coroutines": False}, few=2
    ),
)
async def test_packed_steps_have_the_usual_bits_and_move_the_planned_bytes(options: dict[str, Any], plays: bool) -> None:
    plan = plan_step(SHORT.config, SHORT.work(**{"update": "device", **options}), Machine(**CAPPED))
    assert plan.comes_and_goes
    async with training(CAPPED, **options) as (engine, trainer):
        if not plays:
            without_player(engine)
        reports = [await trainer.step(*batch) for batch in BATCHES[:4]]
        assert is_packed(engine)
        found = await states_of(trainer)
    for report in reports[2:]:
        assert (report.uploaded_bytes, report.downloaded_bytes) == (plan.uploaded_bytes, plan.downloaded_bytes)
        assert report.played is plays and report.device_peak_bytes <= CAPPED["device_memory"]
    assert_same_tensors(found, await by_coroutines(4, **options))


@pytest.mark.parametrize("device", ["emulated", "cpu"])
async def test_coroutines_follow_the_packing_of_a_step_whose_kernels_have_no_machine_code(device: str, tmp_path: Path) -> None:
    below: dict[str, Any] = {"device": "cpu", "host_memory": 3 * SHORT.config.states_nbytes // 2}
    place, spill = (CAPPED, {}) if device == "emulated" else (below, {"spill": tmp_path})
    plan = plan_step(SHORT.config, SHORT.work(update="device"), Machine(**place, spill=bool(spill)))
    async with training({**place, **spill}, update="device") as (engine, trainer):
        gelu = runtime_of(engine).device.kernels["gelu"]
        runtime_of(engine).device.kernels["gelu"] = lambda *arrays: gelu(*arrays)
        reports = [await trainer.step(*batch) for batch in BATCHES[:4]]
        assert is_packed(engine)
        found = await states_of(trainer)
    for report in reports[2:]:
        assert not report.played
        if device == "emulated":
            assert (report.uploaded_bytes, report.downloaded_bytes) == (plan.uploaded_bytes, plan.downloaded_bytes)
    assert_same_tensors(found, await by_coroutines(4))


async def test_a_failed_packed_step_of_coroutines_leaves_the_model_unchanged_and_is_packed_again() -> None:
    async with training(CAPPED) as (engine, trainer):
        without_player(engine)
        trap = set_trap(engine, "gelu")
        await played(trainer, 0, 1)
        for call in (1, 3):
            trap.spring_at(call)
            with pytest.raises(DeviceError, match="failed before it changed the model"):
                await trainer.step(*BATCHES[2])
            assert trap.has_sprung
        assert await played(trainer, 2, 3) == [False, False]
        assert is_packed(engine)
        found = await states_of(trainer)
    assert_same_tensors(found, await by_coroutines(4))


async def test_coroutines_that_follow_a_packing_may_be_cancelled_anywhere() -> None:
    async with training(CAPPED) as (engine, trainer):
        without_player(engine)
        await played(trainer, 0, 1)
        for turns in (1, 3, 7, 20, 60):
            before = trainer.step_count
            step = asyncio.create_task(trainer.step(*BATCHES[before]))
            for _ in range(turns):
                await runtime_of(engine).call(asyncio.sleep(0))
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            assert trainer.step_count in (before, before + 1)
            if trainer.step_count == 4:
                break
        await played(trainer, *range(trainer.step_count, 6))
        found = await states_of(trainer)
    assert_same_tensors(found, await by_coroutines(6))


async def test_tiles_of_other_programs_fit_into_packed_memory_and_return_to_slots() -> None:
    async with training(CAPPED) as (engine, trainer):
        strangers = [Tile(f"stranger {index}", (8, 8), persistent=True) for index in range(4)]
        await played(trainer, 0, 1)
        for index, tile in enumerate(strangers):
            assert is_packed(engine)
            await runtime_of(engine).launch(fill(tile, float(index)))  # no plan has a place for it
            assert not is_packed(engine)
            await played(trainer, 2 + index)
        await runtime_of(engine).launch(fill(a_weight(trainer), 0.5))
        assert [array[0, 0] for array in await runtime_of(engine).read_all(strangers)] == [0, 1, 2, 3]
        assert (await runtime_of(engine).read(a_weight(trainer)) == 0.5).all()


async def test_storing_and_reading_work_where_ram_is_packed_over_a_file(tmp_path: Path) -> None:
    place = {"device": "cpu", "host_memory": 3 * SHORT.config.states_nbytes // 2, "spill": tmp_path}
    async with training(place) as (engine, trainer):
        await played(trainer, 0, 1)
        assert is_packed(engine)
        stranger = Tile("a stranger", (16, 16), persistent=True)
        await runtime_of(engine).store([(stranger, np.full((16, 16), 7, np.float32))])
        assert (await played(trainer, 2, 3))[1] and is_packed(engine)
        assert (await runtime_of(engine).read(stranger) == 7).all()
        assert (await played(trainer, 4, 5))[1]
        found = await states_of(trainer)
    assert_same_tensors(found, await by_coroutines(6))


async def test_a_share_can_be_lent_from_packed_memory_and_given_back() -> None:
    async with training(CAPPED) as (engine, trainer):
        assert await played(trainer, 0, 1) == [False, True]
        async with engine.share(host_memory="4MiB", device_memory=CAPPED["device_memory"] // 2) as part:
            other = Trainer(await lively(part, SHORT), OPTIMIZER, update="device")
            assert await played(other, 0, 1, 2) == [False, True, True]
            assert (await played(trainer, 2, 3))[1]
            assert is_packed(part) and is_packed(engine)
        assert (await played(trainer, 4, 5))[1] and is_packed(engine)
        found = await states_of(trainer)
    assert_same_tensors(found, await by_coroutines(6))


async def test_a_plan_that_forgets_a_move_raises_a_fault_and_gives_no_wrong_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(*args: Any, **more: Any) -> Packing:
        packing = by_chance(1)(*args, **more)
        index = next(index for index, moves in enumerate(packing.moves) if index > 50 and moves)
        return replace(packing, moves=(*packing.moves[:index], (), *packing.moves[index + 1 :]))

    monkeypatch.setattr("asynctile.schedule.decide.plan_top", forgets)
    async with training(CAPPED) as (_, trainer):
        before = await trainer.model.state_dict()
        with pytest.raises(AsynctileError):
            await played(trainer, 0)
        assert_same_tensors(await trainer.model.state_dict(), before)
