"""The benchmark of replayed steps: a small model stands for a large one, steps are counted, and missed goals are named."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from asynctile.layers import GPT2Config
from asynctile.layers.machine import Machine
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.layers.update_placement import tiles_to_update_on_host
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.storage.demand import Demand

SCALE = 8
CONFIG = GPT2Config(n_layer=2, n_head=4, n_embd=512, block_size=256, vocab_size=4000)


@pytest.fixture
def replay(bench: Any) -> Any:
    return bench("bench_replay")


def recorded(config: GPT2Config, tile: int) -> tuple[Program, Demand]:
    machine = Machine(device="cuda:0", precision="bf16")
    tiling = Tiling(config, tile, machine.grain)
    parameters = Parameters(config, tiling, machine.precision)
    program = record("step", parameters, tiling.rows(16, config.block_size))
    return program, demand_of([program], parameters.states())


def test_a_shrunk_model_keeps_the_ratio_of_compute_to_copies_on_another_scale(replay: Any) -> None:
    whole, shrunk = recorded(CONFIG, 512), recorded(replay.shrunk(CONFIG, SCALE), 512 // SCALE)
    rates = Machine(device="cuda:0", precision="bf16").rates
    by_rates = rates, replay.shrunk_rates(SCALE)
    flops = [sum(operation.flops for operation in program.operations()) for program, _ in (whole, shrunk)]
    took = [done / rate.flops_per_s for done, rate in zip(flops, by_rates, strict=True)]
    assert took[0] / took[1] == pytest.approx(SCALE**2, rel=0.1)
    took = [demand.resident_nbytes / rate.up_per_s for (_, demand), rate in zip((whole, shrunk), by_rates, strict=True)]
    assert took[0] / took[1] == pytest.approx(SCALE**2, rel=0.1)


def test_a_shrunk_model_updates_the_same_tiles_in_ram_as_the_whole_model(replay: Any) -> None:
    found = []
    for config, tile, rates in ((CONFIG, 512, Machine(device="cuda:0", precision="bf16").rates),
                                (replay.shrunk(CONFIG, SCALE), 512 // SCALE, replay.shrunk_rates(SCALE))):  # fmt: skip
        program, demand = recorded(config, tile)
        chosen = tiles_to_update_on_host(program, demand, int(0.25 * config.states_nbytes), rates)
        found.append({weight.name for weight in chosen})
    assert found[0] == found[1] != set()


def step(replay: Any, **more: Any) -> Any:
    counts = {"calls": 40, "cpu_s": 0.01, "loop_s": 0.0004, "wall_s": 0.02, "graphs": 3, "nodes": 105, "operations": 60}
    return replay.Step(**counts | more)


@pytest.mark.parametrize(
    ("share", "more", "said"),
    [
        (0.25, {}, "met"),
        (0.25, {"calls": 51}, "MISSED: calls"),
        (0.25, {"cpu_s": 0.021, "nodes": 111}, "MISSED: CPU, nodes"),
        (0.25, {"loop_s": 0.01}, "met"),
        (0.0, {"nodes": 200}, "met"),
        (0.0, {"loop_s": 0.0006}, "MISSED: loop"),
    ],
)
def test_missed_goals_are_named_and_first_steps_do_not_count(replay: Any, share: float, more: Any, said: str) -> None:
    bad = step(replay, calls=9999, cpu_s=9.0, loop_s=9.0, nodes=9999)
    found = replay.Run([bad] * replay.FIRST + [step(replay, **more)] * 3 + [bad], 100, 3, 0.1)
    assert replay.missed(replay.Case("gpt2", share, "device"), found) == said


@pytest.mark.parametrize(("share", "update"), [(0.0, "device"), (0.5, "device"), (0.5, "auto")])
async def test_a_step_is_counted_replayed_and_issued(
    replay: Any, monkeypatch: pytest.MonkeyPatch, share: float, update: str
) -> None:
    for module, name in ((replay.asynctile.device, "open_driver"), (replay.asynctile.device.cuda, "cpu_kernels")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(replay, "config_named", lambda name, length: CONFIG)
    monkeypatch.setattr(replay, "PLACED", {("small", 0.5): 512})
    monkeypatch.setattr(replay, "BATCH", 2)
    replay.nothing_takes_time()
    case, options = replay.Case("small", share, update), argparse.Namespace(scale=SCALE, steps=2)
    row, by_hand, once = await replay.rows_of(case, options)
    replayed = dict(zip(replay.REPLAYED, row, strict=True))
    issued = dict(zip(replay.ISSUED, by_hand, strict=True))
    assert 0 < replayed["graphs"] < replayed["driver calls"] < issued["driver calls"] / 10
    assert replayed["entries"] >= issued["operations"] > 0
    assert replayed["nodes"] > 0.9 * replayed["entries"]
    assert dict(zip(replay.ONCE, once, strict=True))["graphs captured"] == replayed["graphs"]
