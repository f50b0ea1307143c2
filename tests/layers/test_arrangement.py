"""The number of passes in which rows go through a block, and activations kept although they are evicted; no bit changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile import Engine
from asynctile.layers import Trainer, keeping
from asynctile.layers.activations import Room, sizes_of
from asynctile.layers.arrangement import Arrangement, Recorded, Surroundings, arrange, least_of
from asynctile.layers.machine import Machine
from asynctile.layers.plan import plan_step
from asynctile.layers.step import parts_of, record
from asynctile.program.needs import demand_of
from asynctile.schedule.fewest import fewest
from asynctile.schedule.rates import CORES, Rates
from asynctile.storage.demand import ALIGNMENT
from tests.laws import covering
from tests.layers.shapes import shape
from tests.layers.training import OPTIMIZER, assert_same_bits, lively, outcome, yardstick

#: Eight row tiles of a whole sequence each; activations take more than a block's weights.
MANY = shape(16, 2, 24, 16, tile=16, batch=8, length=16, n_layer=2)
PARAMETERS = MANY.parameters()
ROWS = PARAMETERS.tiling.rows(MANY.batch, MANY.length)
STATES = MANY.config.states_nbytes
RESIDENT = demand_of([record("step", PARAMETERS, ROWS)], PARAMETERS.states()).resident_nbytes
FAST_LINK = replace(CORES, flops_per_s=1.0).limited(1e15)
SLOW_LINK = replace(CORES, flops_per_s=1e15).limited(1.0)


def arranged(cap: int | None, rates: Rates = CORES, recompute: bool | str = "auto", **more: Any) -> Arrangement:
    around = Surroundings(
        rooms=(Room(cap, ALIGNMENT), Room(more.pop("ram", None), ALIGNMENT)), standing=sizes_of(PARAMETERS.states()),
        spills=more.pop("spills", False), cores=more.pop("cores", 1), rates=rates, **more,
    )  # fmt: skip
    return arrange(Recorded("step", PARAMETERS), ROWS, around, precision="fp32", recompute=recompute)


def moved_nbytes(cap: int, passes: int, kept: int = 0) -> int:
    found = fewest(record("step", PARAMETERS, ROWS.in_passes(passes), kept=kept), cap, ALIGNMENT)
    assert found is not None
    return found.loaded_nbytes + found.written_nbytes


def test_where_everything_fits_the_passes_are_the_micro_batches() -> None:
    for cap in (None, RESIDENT):
        assert arranged(cap, recompute=True) == Arrangement(1, 0)
    assert arranged(None) == Arrangement(1, parts_of(MANY.config))


def test_more_activations_are_carried_where_updates_on_the_host_leave_room_on_the_link() -> None:
    for cap, rate, kept in ((STATES // 2, 256.0, {"device": 0, "host": 1, "auto": 1}),
                            (int(0.3 * STATES), 1024.0, {"device": 2, "host": 3, "auto": 3})):  # fmt: skip
        rates = replace(CORES, flops_per_s=1e4).limited(rate)
        assert {update: arranged(cap, rates, update=update).kept for update in kept} == kept


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_no_other_number_of_passes_moves_much_less(share: float) -> None:
    cap = int(share * STATES)
    passes = arranged(cap, recompute=True).passes
    assert passes > 1
    assert moved_nbytes(cap, passes) < 0.9 * moved_nbytes(cap, 1)
    assert moved_nbytes(cap, passes) <= min(moved_nbytes(cap, count) for count in (1, 2, 4, 8)) / 0.99


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16, 100])
def test_each_pass_has_a_tile_for_each_core_unless_there_is_one_pass(cores: int) -> None:
    passes = arranged(STATES // 2, recompute=True, cores=cores).passes
    assert passes == 1 or ROWS.most_passes // passes * len(PARAMETERS.tiling.model) >= cores
    assert (passes > 1) == (cores < ROWS.most_passes), "a cap this tight wants as many passes as may be"


def test_ram_without_a_spill_folder_must_hold_a_step_in_that_many_passes() -> None:
    """One pass has all activations of a block at once, several passes have all its gradients; either may need more RAM."""
    cap = STATES // 2
    needed = {count: demand_of([record("step", PARAMETERS, ROWS.in_passes(count))], PARAMETERS.states()).resident_nbytes
              for count in (1, 2, 4, 8)}  # fmt: skip
    assert needed[8] < needed[1]
    assert arranged(cap, recompute=True, ram=needed[8]) == arranged(cap, recompute=True) == Arrangement(8, 0)
    assert arranged(cap, recompute=True, ram=needed[8] - 1).passes == 1, "none fits: as if nothing had been chosen"
    assert arranged(cap, recompute=True, ram=needed[8] - 1, spills=True).passes > 1


def test_activations_are_kept_while_the_link_is_idle_and_ram_holds_them() -> None:
    cap, parts = STATES // 2, parts_of(MANY.config)
    assert arranged(cap, FAST_LINK).kept == parts
    assert arranged(cap, SLOW_LINK).kept == 0
    assert arranged(cap, FAST_LINK, copies=True).kept == parts, "copies take no time to speak of"
    assert arranged(cap, replace(FAST_LINK, flops_per_s=1e15).limited(1e30), copies=True).kept == 0
    most = demand_of([record("step", PARAMETERS, ROWS.in_passes(8), kept=1)], PARAMETERS.states()).resident_nbytes
    assert arranged(cap, FAST_LINK, ram=most).kept in (1, 2)
    assert [arranged(cap, FAST_LINK, recompute=way).kept for way in (True, False)] == [0, parts]


def test_activations_are_kept_as_long_as_compute_stays_the_bottleneck() -> None:
    cap, rates = STATES // 2, replace(CORES, flops_per_s=1e8)
    found = [arranged(cap, rates.limited(link_rate)).kept for link_rate in (1e6, 3e6, 1e7, 1e8, 1e12)]
    assert found == sorted(found)
    assert found[0] == 0 and found[-1] == parts_of(MANY.config)


@given(st.lists(st.integers(1, 10**6), min_size=9, max_size=9), st.integers(1, 9), st.integers(1, 9))
def test_the_choice_costs_no_more_than_the_start(costs: list[int], start: int, most: int) -> None:
    start = min(start, most)
    asked: list[int] = []

    def cost(number: int) -> float:
        asked.append(number)
        return costs[number - 1]

    chosen = least_of(start, most, cost)
    assert 1 <= chosen <= most
    assert chosen == start or costs[chosen - 1] < 0.99 * costs[start - 1]
    assert len(asked) == len(set(asked)), "no cost is asked for twice"


@pytest.mark.parametrize("start", [1, 3, 8])
def test_the_minimum_of_a_valley_is_found(start: int) -> None:
    for bottom in (1, 2, 4, 8):
        found = least_of(start, 8, lambda number, bottom=bottom: 100 + abs(number - bottom) * 10)  # type: ignore[misc]
        assert abs(found - bottom) <= 1


@pytest.mark.parametrize(("device", "recompute"), covering(["emulated", "cpu"], ["auto", True, False], few=2))
async def test_a_run_follows_the_plan_and_no_bit_changes(
    device: str, recompute: bool | str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cap = int((0.4 if device == "emulated" else 0.8) * STATES)  # over a folder tiles are whole pages
    caps: dict[str, Any] = {"device_memory": cap, "link_rate": "2GB"} if device == "emulated" else {"host_memory": cap}
    spill = {} if device == "emulated" else {"spill": tmp_path}
    work = MANY.work(update="device", recompute=recompute)
    plan = plan_step(MANY.config, work, Machine(device=device, spill=device == "cpu", **caps))
    assert plan.passes > 1 or recompute is False
    assert ("passes through a layer", str(plan.passes)) in plan.lines()
    chosen: list[Arrangement] = []
    monkeypatch.setattr(keeping, "arrange", lambda *args, **more: chosen.append(arrange(*args, **more)) or chosen[-1])
    async with Engine(device, **caps, **spill) as engine:
        trainer = Trainer(await lively(engine, MANY), OPTIMIZER, update="device", recompute=recompute)
        before = engine.statistics().operations
        await trainer.step(*MANY.batch_of_tokens(1))
        assert engine.statistics().operations - before == plan.operations
        assert chosen == [Arrangement(plan.passes, plan.kept)]
    found = await outcome(MANY, steps=2, device=device, engine_options={**caps, **spill}, recompute=recompute)
    assert_same_bits(found, await yardstick(MANY))


async def test_fewer_bytes_move_than_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"device_memory": int(0.9 * STATES)}
    several = await outcome(MANY, engine_options=options, recompute=True)
    monkeypatch.setattr("asynctile.layers.arrangement.COUNTED_ENTRIES", 0)  # as if the program were too long to count
    one = await outcome(MANY, engine_options=options, recompute=True)
    assert_same_bits(several, one)
    assert several.uploaded_bytes < 0.9 * one.uploaded_bytes
