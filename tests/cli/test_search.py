"""The search for faster settings of a run: it climbs over plans, and stops when told."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.cli.options import Options
from asynctile.cli.search import faster, under_other_caps
from asynctile.cli.verdict import Verdict
from asynctile.errors import BudgetError
from tests.cli.conftest import Program

OPTIONS = Options(batch_size=12)


def plan_of(options: Options) -> Any:
    """Return the plan of a machine on which tiles of 512, updates in RAM and four parts are best; 1024 fits nowhere."""
    tile = options.tile or 128
    if tile > 512:
        raise BudgetError("too wide", floor=1)
    step_s = 512 / tile + {"auto": 1.0, "device": 2.0, "host": 0.5}[options.update] + 1 / options.micro_batches
    return SimpleNamespace(tile=tile, step_s=step_s, host_bytes=100 if options.recompute is None else 200,
                           tokens_per_s=1 / step_s, spill_bytes=0)  # fmt: skip


def found(**given: Any) -> Any:
    options = replace(OPTIONS, **given)
    return faster(options, plan_of(options), plan_of, lambda: False, 100)


def test_one_change_after_another_leads_to_the_fastest_settings() -> None:
    best = found()
    assert best.changes == {"tile": 512, "update": "host", "micro_batches": 4}
    assert best.words() == "--tile 512 --update host --micro-batches 4" and best.plan.step_s == 1.75


def test_each_change_has_its_own_gain() -> None:
    best = found()
    assert best.gains == pytest.approx({"tile": 5 / 9, "update": 1 / 8, "micro_batches": 1 / 4})
    _, together, *each = Verdict(plan_of(OPTIONS), OPTIONS, None, searched=True, found=best).lines()
    assert together[1].endswith("71% less time")
    assert each == [("  --tile 512", "56% less"), ("  --update host", "12% less"), ("  --micro-batches 4", "25% less")]


def test_settings_that_are_best_already_stay() -> None:
    assert found(tile=512, update="host", micro_batches=4) is None


def test_smaller_tiles_are_not_tried() -> None:
    def smaller_is_faster(options: Options) -> Any:
        return SimpleNamespace(tile=options.tile or 128, step_s=float(options.tile or 128), host_bytes=0)

    assert faster(OPTIONS, smaller_is_faster(OPTIONS), smaller_is_faster, lambda: False, 0) is None


def test_settings_that_take_more_ram_are_not_proposed() -> None:
    assert "recompute" not in found().changes


def test_only_the_settings_that_may_change_are_tried() -> None:
    best = faster(OPTIONS, plan_of(OPTIONS), plan_of, lambda: False, 100, ("tile",))
    assert best is not None and best.changes == {"tile": 512}


def test_a_gain_below_two_percent_is_not_worth_a_proposal() -> None:
    def nearly(options: Options) -> Any:
        return SimpleNamespace(tile=128, step_s=1.0 if options.tile is None else 0.985, host_bytes=0)

    assert faster(OPTIONS, nearly(OPTIONS), nearly, lambda: False, 0) is None


def test_the_search_stops_when_its_time_is_over_and_keeps_what_it_has() -> None:
    tries = []

    def counted(options: Options) -> Any:
        tries.append(options)
        return plan_of(options)

    best = faster(OPTIONS, plan_of(OPTIONS), counted, lambda: len(tries) == 1, 100)
    assert len(tries) == 1 and best is not None and best.changes == {"tile": 256}


def under_cap(options: Options) -> Any:
    """Return a plan that is as fast as its cap is large; under 10 bytes nothing fits."""
    assert options.device_memory is not None
    if options.device_memory < 10:
        raise BudgetError("too small", floor=10)
    return SimpleNamespace(step_s=1 / options.device_memory, host_bytes=0)


@pytest.mark.parametrize(("cap", "most", "shown"), [
    (16, None, [("--device-memory 32 B", "about 31.2 ms a step, 50% less time"), ("--device-memory 8 B", "does not fit")]),
    (20, 39, [("--device-memory 10 B", "about 100 ms a step, 100% more time")]),
])
def test_a_search_says_what_twice_and_half_of_a_cap_change(cap: int, most: int | None, shown: list[tuple[str, str]]) -> None:
    options = replace(OPTIONS, device_memory=cap)
    caps = tuple(under_other_caps(options, under_cap, lambda: False, {"device_memory": most}))
    assert [one.nbytes for one in caps] == [nbytes for nbytes in (2 * cap, cap // 2) if most is None or nbytes <= most]
    plan = SimpleNamespace(step_s=1 / cap, tokens_per_s=1.0, host_bytes=0, spill_bytes=0)
    assert Verdict(plan, options, None, caps=caps).lines()[-len(shown):] == shown


def test_other_caps_are_left_alone_once_the_time_is_over() -> None:
    assert list(under_other_caps(replace(OPTIONS, device_memory=16), under_cap, lambda: True, {"device_memory": None})) == []


def test_a_machine_with_several_gpus_is_offered_more_replicas(program: Program) -> None:
    words = ("--machine", "a100-node", "--batch-size", 8, "--seq-len", 32, "--search", "1h", "--json")
    offered = json.loads(program("plan", *words)[1])["faster"]
    assert offered["options"]["replicas"] == 2 and offered["gains"]["replicas"] > 0.02
    chosen = json.loads(program("plan", *words, "--device", "cuda:0", "--device-memory", "1GiB")[1])
    assert "replicas" not in (chosen["faster"] or {"options": {}})["options"]
    assert [one["option"] for one in chosen["under_other_caps"]] == ["device_memory"] * 2


def test_a_plan_names_the_fastest_settings_and_by_how_much_they_are_faster(program: Program) -> None:
    words = ("--machine", "h100", "--tile", 64, "--batch-size", 1, "--seq-len", 16, "--search", "1h")
    status, out, _ = program("plan", *words)
    assert status == 0
    line = next(line for line in out.splitlines() if line.startswith("faster"))
    assert "--tile" in line and line.endswith("% less time")


def test_a_program_gets_the_fastest_settings_by_name(program: Program) -> None:
    words = ("--machine", "h100", "--batch-size", 1, "--seq-len", 16, "--json")
    assert json.loads(program("plan", *words)[1])["faster"] is None
    searched = json.loads(program("plan", *words, "--tile", 64, "--search", "1h")[1])
    assert searched["faster"]["step_s"] < searched["step_s"] and searched["faster"]["options"]["tile"] > 64
