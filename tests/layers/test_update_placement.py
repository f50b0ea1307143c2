"""The place of AdamW: it changes no bit and moves fewer bytes, and the cost model finds the cheapest split."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile import BudgetError, Engine
from asynctile.layers import Trainer
from asynctile.layers.machine import Machine
from asynctile.layers.model import model_state_of
from asynctile.layers.placing import Placing
from asynctile.layers.plan import plan_step
from asynctile.layers.step import record
from asynctile.layers.update_placement import (
    NOWHERE,
    Costs,
    cheapest,
    costs_of,
    link_seconds,
    seconds,
    spread,
    tiles_to_update_on_host,
    updates_of,
)
from asynctile.program.needs import demand_of
from asynctile.program.operation import HOST, NO_NUMBER
from asynctile.schedule.fewest import fewest
from asynctile.schedule.rates import CORES, Rates
from asynctile.share import runtime_of
from asynctile.storage.demand import ALIGNMENT
from tests.interpreter import Model
from tests.laws import law
from tests.layers.shapes import LIGHT, Shape
from tests.layers.training import (
    OPTIMIZER,
    RAGGED,
    Outcome,
    assert_same_bits,
    batches_of,
    floor_of,
    lively,
    outcome,
    yardstick,
)
from tests.settle import HANG_S

STEPS = 2
STATES = RAGGED.config.states_nbytes
RATES = replace(CORES, flops_per_s=1e12, updated_per_s=4e10).limited(1e10)
COSTS = Costs(
    tiles=100, resident=0, compute_s=0.0, states_nbytes=12e6, gradient_nbytes=4e6, weight_nbytes=4e6, memory_nbytes=28e6
)


async def check(update: str, **more: Any) -> Outcome:
    async with asyncio.timeout(HANG_S):
        found = await outcome(RAGGED, steps=STEPS, update=update, **more)
    assert_same_bits(found, await yardstick())
    return found


@pytest.mark.parametrize(("update", "share", "prefetch"), [
    ("host", "floor", 2), law("host", 0.5, 8), ("auto", 0.25, 0), law("auto", None, 2),
    law("host", "floor", 0), law("host", 0.25, 2), law("host", None, 2),
    law("host", 0.25, 0), law("auto", "floor", 0), law("auto", 0.25, 2), law("auto", "floor", 2), law("auto", 0.5, 8),
])  # fmt: skip
async def test_no_place_changes_a_bit(update: str, prefetch: int, share: str | float | None) -> None:
    cap = await floor_of() if share == "floor" else share and int(share * STATES)
    found = await check(update, engine_options={"device_memory": cap, "prefetch": prefetch})
    assert cap is None or found.device_peak_bytes <= cap


async def test_clipping_itself_is_equal_bit_for_bit_in_every_place() -> None:
    resident = await outcome(RAGGED, steps=STEPS, device="cpu", clip_norm=0.1)
    for cap in (await floor_of(), STATES // 4):
        found = await outcome(RAGGED, steps=STEPS, clip_norm=0.1, update="host", engine_options={"device_memory": cap})
        assert_same_bits(found, resident)


@pytest.mark.parametrize(("device_share", "host_share", "prefetch", "clip_norm"), [
    (0.2, 0.2, 2, 1e30), law(0.2, 0.5, 0, 1e30), law(0.5, 0.2, 8, None), law(3.0, 0.25, 2, 1e30),
    law(0.2, 0.2, 2, None), law(0.2, 0.5, 0, None), law(0.5, 0.2, 8, 1e30), law(3.0, 0.25, 2, None),
])  # fmt: skip
async def test_no_budget_of_three_tiers_changes_a_bit(
    device_share: float, host_share: float, prefetch: int, clip_norm: float | None, tmp_path: Path
) -> None:
    caps = {"device_memory": int(device_share * STATES), "host_memory": int(host_share * STATES)}
    await check("host", clip_norm=clip_norm, engine_options={"spill": tmp_path, "prefetch": prefetch, "watchdog": 60, **caps})


@pytest.mark.parametrize(("seed", "clip_norm"), [
    (1, 1e30), *(law(*one) for one in ((0, None), (2, 1e30), (3, None), (0, 1e30), (1, None), (2, None), (3, 1e30))),
])  # fmt: skip
async def test_no_mixture_changes_a_bit(
    seed: int, clip_norm: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any subset of the tiles, vectors too."""
    chance = random.Random(seed)
    mixture: list[int] = []

    async def drawn(self: Placing, *_: Any) -> Any:
        weights = list(self._model.weights())
        mixture[:] = mixture or [index for index in range(len(weights)) if chance.random() < (0.1, 0.5, 0.9)[seed % 3]]
        return frozenset(weights[index] for index in mixture)

    monkeypatch.setattr(Placing, "on_host", drawn)  # no argument of a Trainer places single tiles
    options: dict[str, Any] = {"device_memory": STATES // 4}
    if seed % 2:
        options |= {"host_memory": STATES // 3, "spill": tmp_path}
    await check("auto", clip_norm=clip_norm, engine_options=options)
    assert mixture


async def test_updates_on_the_host_move_gradients_down_weights_up_and_no_moments() -> None:
    """There is room for all but the moments. Every step downloads its gradients and uploads the weights that the host wrote."""
    parameters = sum(value.size for value in (await yardstick()).weights.values())
    async with Engine("emulated", device_memory=2 * STATES) as engine:
        trainer = Trainer(await lively(engine, RAGGED), OPTIMIZER, micro_batches=RAGGED.micro_batches, update="host")
        for batch in batches_of(RAGGED, 3):
            report = await trainer.step(*batch)
        for item in model_state_of(trainer.model).parameters.values():
            moments = (*item.exp_avg.values(), *item.exp_avg_sq.values())
            assert not any(runtime_of(engine).tiers.top.of(tile).slot for tile in moments)
    assert report.downloaded_bytes == 4 * parameters
    inputs = report.uploaded_bytes - 4 * parameters
    assert 0 < inputs < 2000, "tokens, targets, settings"


async def test_fewer_bytes_move_if_little_fits() -> None:
    moved = {}
    for where in ("device", "host"):
        async with Engine("emulated", device_memory=STATES // 4) as engine:
            # Otherwise more activations would be kept where updates on the host leave room on the link.
            trainer = Trainer(await lively(engine, RAGGED), OPTIMIZER, micro_batches=RAGGED.micro_batches, update=where,
                              recompute=True)  # fmt: skip
            for batch in batches_of(RAGGED, 3):
                report = await trainer.step(*batch)
        moved[where] = report.uploaded_bytes, report.downloaded_bytes
    assert moved["host"][0] < 0.7 * moved["device"][0]
    assert moved["host"][1] < 0.7 * moved["device"][1]


async def test_if_everything_fits_nothing_leaves_the_device() -> None:
    for options in ({"device": "emulated"}, {"device": "emulated", "device_memory": 4 * STATES}, {"device": "cpu"}):
        async with Engine(**options) as engine:  # type: ignore[arg-type]
            trainer = Trainer(await lively(engine, RAGGED), OPTIMIZER, micro_batches=RAGGED.micro_batches)
            for batch in batches_of(RAGGED, 2):
                report = await trainer.step(*batch)
            assert report.downloaded_bytes == 0


async def test_ram_too_small_for_an_update_is_refused_or_not_chosen(tmp_path: Path) -> None:
    """One slot of each size is enough for tiles that pass through, but "auto" finds no host that could update."""
    caps = {"device_memory": STATES // 4, "spill": tmp_path}
    async with Engine("emulated", host_memory=1, **caps) as engine:  # type: ignore[arg-type]
        with pytest.raises(BudgetError) as caught:
            await lively(engine, RAGGED)
    # The update costs next to nothing, so only RAM forbids it.
    slow_link = replace(RATES, updated_per_s=1e12).limited(1e3)
    for pages in (1, 6):
        caps["host_memory"] = pages * caught.value.floor
        await check("auto", engine_options={**caps, "rates": slow_link})
    async with Engine("emulated", **caps) as engine:  # type: ignore[arg-type]
        trainer = Trainer(await lively(engine, RAGGED), micro_batches=RAGGED.micro_batches, update="host")
        with pytest.raises(BudgetError, match=r"host_memory .*adamw of .* needs 9 slots"):
            await trainer.step(*RAGGED.batch_of_tokens())
        assert engine.statistics().operations == 0


async def test_an_invalid_place_is_refused() -> None:
    async with Engine("cpu") as engine:
        with pytest.raises(ValueError, match="update is 'gpu', expected one of auto, device, host"):
            Trainer(await lively(engine, RAGGED), update="gpu")


@pytest.mark.parametrize("shape", LIGHT.values(), ids=LIGHT.keys())
@pytest.mark.parametrize("kind", ["step", "step_clipped"])
def test_the_norm_comes_from_the_device_wherever_updates_run(shape: Shape, kind: str) -> None:
    parameters = shape.parameters()
    rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches)
    device = record(kind, parameters, rows)
    weights = [tile for parameter in parameters.values() for tile in parameter.weights.values()]
    chosen = frozenset(weights[::2])
    mixed = record(kind, parameters, rows, on_host=chosen)
    assert mixed.numbers == device.numbers
    for operation in mixed.operations():
        if operation.kernel == "adamw":
            assert (operation.device == HOST) == (operation.operands[0] in chosen)
            assert (operation.number == NO_NUMBER) == (operation.device == HOST)
        else:
            assert operation.device != HOST
    reported = {operation.number for operation in mixed.operations() if operation.number not in (None, NO_NUMBER)}
    assert reported == set(range(len(mixed.numbers)))
    first = next(index for index, entry in enumerate(mixed.entries) if getattr(entry, "kernel", "") == "adamw")
    assert mixed.marks["update"] == first - 1


def test_a_step_with_updates_on_the_host_means_the_same() -> None:
    shape = LIGHT["sequences cut, all ragged"]
    models = [Model.create(shape.parameters(), seed=1) for _ in range(2)]
    tokens, targets = shape.batch_of_tokens()
    weights = frozenset(tile for parameter in models[1].parameters.values() for tile in parameter.weights.values())
    one = models[0].step(tokens, targets, micro_batches=2)
    other = models[1].step(tokens, targets, micro_batches=2, on_host=weights)
    assert one == other
    for family in ("weights", "exp_avg", "exp_avg_sq"):
        expected = models[0].state(family)
        assert all(np.array_equal(value, expected[name]) for name, value in models[1].state(family).items())


def test_a_step_takes_as_long_as_its_slowest_resource() -> None:
    assert seconds(COSTS, RATES, 0) == pytest.approx(100 * 12e6 / 1e10)
    assert seconds(COSTS, RATES, 100) == pytest.approx(100 * 28e6 / 4e10)
    assert seconds(replace(COSTS, resident=40), RATES, 0) == pytest.approx(60 * 12e6 / 1e10)
    assert seconds(replace(COSTS, resident=40), RATES, 30) == pytest.approx((30 * 12e6 + 30 * 4e6) / 1e10)
    busy = replace(COSTS, other_up_nbytes=1e9, other_down_nbytes=3e9)
    assert link_seconds(busy, RATES, 30) == pytest.approx(((1e9 + 960e6) / 1e10, (3e9 + 960e6) / 1e10))
    assert seconds(replace(COSTS, compute_s=9.0), RATES, 30) == 9.0
    assert seconds(COSTS, replace(RATES, down_per_s=1e9), 0) == pytest.approx(100 * 12e6 / 1e9)


def test_the_cheapest_split_balances_the_link_and_the_cpu() -> None:
    on_host = cheapest(COSTS, RATES)
    assert on_host == 80  # 20 * 12 + 80 * 4 MB on the link against 80 * 28 MB of RAM at four times its rate
    assert cheapest(replace(COSTS, compute_s=0.2), RATES) == 100  # all updates hide behind compute, which unloads the link most
    assert cheapest(replace(COSTS, compute_s=0.2), replace(RATES, updated_per_s=1e10)) == 71  # as many as hide behind compute
    assert cheapest(replace(COSTS, resident=100), RATES) == 0
    assert cheapest(COSTS, replace(RATES, updated_per_s=1e15)) == 100
    assert cheapest(COSTS, replace(RATES, updated_per_s=1.0)) == 0


costs = st.builds(
    Costs, tiles=st.integers(1, 60), resident=st.integers(0, 70), compute_s=st.floats(0, 0.1), states_nbytes=st.just(12e6),
    gradient_nbytes=st.just(4e6), weight_nbytes=st.sampled_from([2e6, 4e6]), memory_nbytes=st.just(28e6),
)  # fmt: skip
rate = st.floats(1e8, 1e12)
rates = st.builds(replace, st.just(CORES), flops_per_s=rate, up_per_s=rate, down_per_s=rate, updated_per_s=rate)


@given(costs, rates)
def test_no_split_is_cheaper_and_no_equally_cheap_one_loads_the_link_less(costs: Costs, rates: Rates) -> None:
    chosen = cheapest(costs, rates)
    least, busy = seconds(costs, rates, chosen), sum(link_seconds(costs, rates, chosen))
    for other in range(costs.tiles + 1):
        assert seconds(costs, rates, other) >= least
        if seconds(costs, rates, other) == least:
            assert sum(link_seconds(costs, rates, other)) >= busy


@given(st.integers(1, 200), st.data())
def test_chosen_tiles_are_spread_evenly(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    places = spread(count, total)
    assert len(places) == len(set(places)) == count
    assert all(0 <= place < total for place in places)
    for first in range(0, total, 7):
        for length in (1, 5, 50):
            inside = sum(first <= place < first + length for place in places)
            assert abs(inside - count * min(length, total - first) / total) < 1


def test_the_costs_are_those_of_the_program() -> None:
    parameters = RAGGED.parameters()
    program = record("step", parameters, parameters.tiling.rows(RAGGED.batch, RAGGED.length, 2))
    demand = demand_of([program], parameters.states())
    matrices = [operation for operation in updates_of(program) if len(operation.operands[0].shape) == 2]
    size = sum(operation.operands[0].nbytes // 4 for operation in matrices) / len(matrices)


    def costs(cap: int) -> Costs:
        return costs_of(program, matrices, fewest(program, cap, ALIGNMENT), RATES)

    found = costs(demand.resident_nbytes)
    assert found.resident == found.tiles == len(matrices)
    assert found.other_down_nbytes == 0 < found.other_up_nbytes < 2000, "inputs"
    assert (found.states_nbytes, found.gradient_nbytes, found.weight_nbytes) == pytest.approx((12 * size, 4 * size, 4 * size))
    assert found.memory_nbytes == pytest.approx(28 * size)
    assert found.compute_s == sum(operation.flops for operation in program.operations()) / 1e12
    small, large = costs(STATES // 8), costs(STATES)
    assert 0 <= small.resident < large.resident < len(matrices)
    assert small.other_up_nbytes > large.other_up_nbytes
    assert costs(1000).resident == 0, "below the floor all of them move"


def test_a_placement_depends_on_program_cap_and_rates_alone() -> None:
    names = []
    for _ in range(2):
        parameters = RAGGED.parameters()
        program = record("step", parameters, parameters.tiling.rows(RAGGED.batch, RAGGED.length, 2))
        demand = demand_of([program], parameters.states())
        slow = replace(RATES, updated_per_s=1e6).limited(1e6)
        place = partial(tiles_to_update_on_host, program, demand)
        names.append(sorted(tile.name for tile in place(STATES // 4, slow)))
        assert 0 < len(names[-1]) < len(updates_of(program))
        assert place(STATES // 4, replace(slow, updated_per_s=1e-3)) == NOWHERE
        assert place(None, slow) == place(demand.resident_nbytes, slow) == NOWHERE
        weights = {operation.operands[0] for operation in updates_of(program)}
        matrices = {tile for tile in weights if len(tile.shape) == 2}
        assert place(STATES // 4, replace(slow, updated_per_s=1e15)) == matrices
    assert names[0] == names[1]


def test_a_plan_says_where_tiles_are_updated() -> None:
    machine = Machine(device="emulated", device_memory=STATES // 4)
    plans = {update: plan_step(RAGGED.config, RAGGED.work(update=update), machine) for update in ("device", "host", "auto")}
    assert plans["device"].updates_on_host == 0
    assert plans["host"].updates_on_host == plans["host"].updates == plans["device"].updates > 0
    assert plans["host"].uploaded_bytes < plans["device"].uploaded_bytes
    count = plans["host"].updates
    assert ("weight tiles", f"{count}, {count} of them updated on the host") in plans["host"].lines()
    slow = plan_step(RAGGED.config, RAGGED.work(), replace(machine, link_rate="1MB"))
    assert 0 < slow.updates_on_host <= slow.updates
    assert plan_step(RAGGED.config, RAGGED.work(update="host"), Machine(device="cpu")).updates_on_host == 0
