"""`asynctile stress` as a user sees it: options, refusals, a round of each scenario, the report, exit statuses.

tests/cli/test_stress_planted.py checks that it finds planted bugs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from asynctile.cli.stress import conductor, lives, partner
from asynctile.cli.stress.disturb import Landed
from asynctile.cli.stress.finding import KINDS, Finding, expect_bytes
from asynctile.cli.stress.round import Round, seed_after
from asynctile.cli.stress.settings import SCENARIOS, StressSettings
from asynctile.cli.stress.thrash import least_loads
from asynctile.cli.stress.writer import LEAST_OPERATIONS, write_program
from asynctile.errors import BudgetError
from asynctile.ops import gelu
from asynctile.program.operation import HOST, UPDATE, WRITE
from asynctile.storage.tile import Tile
from tests.cli.conftest import Program
from tests.cli.test_refusals import refused
from tests.laws import law
from tests.settle import HANG_S


def stress(program: Program, tmp_path: Path, *words: object) -> tuple[int, str, str]:
    return program("stress", "--spill", tmp_path, "--seed", 3, *words)


@pytest.mark.laws
@pytest.mark.timeout(600)  # a save is killed after each of a hundred calls, by as many processes
def test_a_round_of_each_scenario(program: Program, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    status, out, err = stress(program, tmp_path, "--rounds", 1, "--report", report)
    assert (status, err) == (0, ""), out
    found = json.loads(report.read_text())
    assert found["rounds"] == dict.fromkeys(SCENARIOS, 1)
    assert found["options"] == {
        "seed": 3, "minutes": None, "rounds": 1, "cancellations": None, "scenarios": list(SCENARIOS), "spill": str(tmp_path),
    }  # fmt: skip
    assert found["failures"] == [] and found["found"] == dict.fromkeys(KINDS, 0)
    assert found["kills"] >= 1 and found["cancellations"] > 0 and sum(found["pairs"].values()) == 1
    assert all(found["moved"].values()) and found["libraries"]["numpy"]
    assert ", ".join(f"{name} 1" for name in SCENARIOS) in out and "0 B lost" in out
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"], "the folder that it made is gone"


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [(2, {"random": 74, "thrash": 9, "faults": 37}), (0.03, {"random": 1, "thrash": 1, "faults": 1})],
)
def test_time_is_shared_and_every_scenario_gets_a_round(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, expected: dict[str, int]
) -> None:
    """Rounds take a second each, by a clock that moves with them."""
    clock = SimpleNamespace(now=0.0)

    async def play(round: Round) -> bool:
        clock.now += 1.0
        return True

    monkeypatch.setattr(conductor, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for name in expected:
        monkeypatch.setitem(conductor.PLAYS, name, play)
    report = tmp_path / "report.json"
    status, _, _ = stress(program, tmp_path, "--minutes", minutes, "--scenario", "random,thrash", "--scenario", "faults",
                          "--report", report)  # fmt: skip
    rounds = json.loads(report.read_text())["rounds"]
    assert status == 0
    assert rounds == {name: pytest.approx(count, abs=1) for name, count in expected.items()}
    assert sum(rounds.values()) == max(60 * minutes, len(expected))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--minutes", "0"], ["--minutes", "0"]),
        (["--minutes", "nan"], ["--minutes", "nan"]),
        (["--rounds", "-1"], ["--rounds", "-1"]),
        (["--rounds", "1.5"], ["--rounds", "1.5"]),
        (["--seed", "x"], ["--seed", "'x'"]),
        (["--cancellations", "0"], ["--cancellations", "0"]),
        (["--cancellations", "9"], ["--cancellations", "--scenario cancel"]),
        (["--scenario", "thrush"], ["thrush", "thrash"]),
        (["--scenario", "random,,"], ["''", "thrash"]),
        (["--scenario", ""], ["--scenario"]),
        (["--spill", "/no/such/folder"], ["/no/such/folder"]),
        (["--spill", "/dev/null"], ["/dev/null"]),
        (["--report", "/no/such/folder/x.json"], ["/no/such/folder"]),
        (["--report", "."], ["--report"]),
    ],
)
def test_bad_options_are_refused(program: Program, words: list[str], expected: list[str]) -> None:
    refused(program("stress", *words), *expected, command="stress")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_refused(program: Program, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    refused(program("stress", "--spill", locked), "locked", command="stress")


def test_a_failed_round_names_every_error_of_a_group(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(round: Round) -> bool:
        raise ExceptionGroup("two", [ValueError("one reason"), ExceptionGroup("inner", [KeyError("another")])])

    monkeypatch.setitem(conductor.PLAYS, "random", play)
    status, out, _ = stress(program, tmp_path, "--scenario", "random", "--rounds", 1)
    assert status == 1 and "ValueError: one reason" in out and "KeyError: 'another'" in out


@pytest.mark.parametrize("others", [[], [ValueError("a bug")]])
async def test_a_refusal_in_a_group_of_tasks_counts_as_one_unless_something_else_failed(others: list[Exception]) -> None:
    refusal = ExceptionGroup("tasks", [BudgetError("too little", floor=1), *others])
    assert lives.is_refusal(refusal) is not bool(others)


def test_a_failed_round_is_reported_with_the_seed_that_repeats_it(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    async def play(round: Round) -> bool:
        drawn.append(round.chance.random())
        if drawn[-1] > 0.6:
            raise Finding("lost", "a byte is\nanother one", 1)
        return True

    monkeypatch.setitem(conductor.PLAYS, "random", play)
    report = tmp_path / "report.json"
    status, out, _ = stress(program, tmp_path, "--scenario", "random", "--rounds", 20, "--report", report)
    found = json.loads(report.read_text())
    unlucky = [number for number, value in enumerate(drawn) if value > 0.6]
    assert status == 1 and found["status"] == 1
    assert [failure["seed"] for failure in found["failures"]] == [seed_after(3, number) for number in unlucky]
    assert found["lost_bytes"] == len(unlucky) == found["found"]["lost"]
    assert "a byte is another one" in out
    value = drawn[unlucky[-1]]
    drawn.clear()
    words = found["failures"][-1]["command"].split()
    assert words[0] == "asynctile"
    assert program(*words[1:])[0] == 1
    assert drawn == [value]


def test_a_scenario_ends_when_its_process_has_ended(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is reported once, the other scenarios go on, and nobody waits for the minutes to pass."""
    monkeypatch.setitem(partner.PROGRAMS, "kill", ("-c", "raise SystemExit('out of memory')"))
    report = tmp_path / "report.json"
    assert stress(program, tmp_path, "--scenario", "kill", "--minutes", 60)[0] == 1
    status, _, _ = stress(program, tmp_path, "--scenario", "kill,thrash", "--rounds", 3, "--report", report)
    found = json.loads(report.read_text())
    assert status == 1
    assert [failure["what"].partition(":")[2] for failure in found["failures"]] == [" out of memory"]
    assert found["rounds"] == {"kill": 1, "thrash": 3}


@pytest.mark.parametrize("scenarios", ["random,thrash,kill", law(",".join(SCENARIOS))])
def test_ctrl_c_ends_stress_early_with_the_results_so_far(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenarios: str
) -> None:
    """Also where a scenario has a process of its own, as `kill` has."""
    played = []

    def and_counted(play: Callable[[Round], Awaitable[bool]]) -> Callable[[Round], Awaitable[bool]]:
        async def counted(round: Round) -> bool:
            played.append(round.scenario)
            if len(played) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return await play(round)

        return counted

    for name, play in conductor.PLAYS.items():
        monkeypatch.setitem(conductor.PLAYS, name, and_counted(play))
    report = tmp_path / "report.json"
    status, out, _ = stress(program, tmp_path, "--minutes", 60, "--scenario", scenarios, "--report", report)
    assert len(played) == 3
    assert (status, json.loads(report.read_text())["status"]) == (130, 130), out
    assert "stopping after this round" in out and "\nrounds " in out
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_round_that_hangs_without_a_watchdog_ends_the_process(tmp_path: Path) -> None:
    """Runs in a process of its own, because the hang ends the process."""
    code = """
import asyncio, sys
from asynctile.cli import main
from asynctile.cli.stress import conductor
async def play(round):
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            pass
conductor.DEADLINE_S = 0.2
conductor.PLAYS["random"] = play
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "stress", "--scenario", "random", "--spill", str(tmp_path), "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1, done.stderr
    assert "hung in random: the round did not end within 0.2 s; no engine is open" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_options_are_settled() -> None:
    assert StressSettings.of({}).minutes == 1 and StressSettings.of({}).rounds is None
    assert StressSettings.of({"rounds": 3}).minutes is None
    both = StressSettings.of({"rounds": 3, "minutes": 2.0, "seed": 9, "scenario": ["kill,random", "random"]})
    assert (both.rounds, both.minutes, both.seed, both.scenarios) == (3, 2.0, 9, ("random", "kill"))
    assert StressSettings.of({}).seed != StressSettings.of({}).seed


def test_cancellations_are_counted_by_coroutine(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scenario goes on until it has enough of them, and says where each one met its call."""

    async def play(round: Round) -> bool:
        for landed in Landed:
            round.tally.disturb("Trainer.step", "timeout", landed, "cpu")
        return True

    monkeypatch.setitem(conductor.PLAYS, "cancel", play)
    report = tmp_path / "report.json"
    status, out, _ = stress(program, tmp_path, "--scenario", "cancel", "--cancellations", 5, "--report", report)
    found = json.loads(report.read_text())
    assert (status, found["cancellations"], found["rounds"]["cancel"]) == (0, 6, 3)
    assert found["disturbed"] == {"Trainer.step": {
        "kinds": {"timeout": 9}, "landed": {"before it began": 3, "inside": 3, "after its end": 3}, "places": {"cpu": 9},
    }}  # fmt: skip
    assert "Trainer.step  3 before it began, 3 inside, 3 after its end" in out
    assert StressSettings.of({"cancellations": 5, "scenario": ["cancel"]}).minutes is None


def test_seeds_of_rounds() -> None:
    assert seed_after(7, 0) == 7
    assert len({seed_after(7, index) for index in range(1000)} | {seed_after(8, index) for index in range(1000)}) == 2000


def test_a_difference_of_one_bit_is_found() -> None:
    right = np.ones((3, 4), np.float32)
    expect_bytes("t", right.copy(), right)
    wrong = right.copy()
    wrong.view(np.uint32)[2, 1] ^= 1
    with pytest.raises(Finding, match="t: 1 of 48 bytes") as caught:
        expect_bytes("t", wrong, right)
    assert (caught.value.kind, caught.value.nbytes) == ("lost", 1)
    with pytest.raises(Finding, match=r"\(4, 3\)"):
        expect_bytes("t", right.T, right)


def test_random_programs_are_what_they_should_be() -> None:
    seen = set()
    for seed in range(12):
        work = write_program(random.Random(seed))
        operations = list(work.program.operations())
        outcome = work.interpret(work.values)
        assert len(operations) >= LEAST_OPERATIONS
        assert 2 * work.demand.rounded(4096).floor_nbytes <= work.demand.rounded(4096).resident_nbytes
        assert all(np.isfinite(value).all() for value in outcome.tiles.values())
        seen |= {how for operation in operations for how in operation.access}
        seen |= {"temporary"} if work.program.temporaries else set()
        seen |= {"output"} if outcome.outputs else set()
        seen |= {"two sizes"} if len(work.demand.rounded(4096).sizes) == 2 else set()
        again = write_program(random.Random(seed))
        assert [repr(entry) for entry in again.program.operations()] == [repr(entry) for entry in operations]
    assert seen == {"r", WRITE, UPDATE, "temporary", "output", "two sizes"}


def test_programs_to_launch_one_by_one_name_no_operation_of_the_host() -> None:
    for seed in range(12):  # each runs on the device, whose floor counts no operation of the host
        work = write_program(random.Random(seed), passing=False)
        assert not any(operation.device == HOST for operation in work.program.operations())


def test_the_least_loads_of_a_schedule_are_counted() -> None:
    tiles = [Tile(name, (2, 2), persistent=True) for name in "abc"]
    a, b, c = tiles
    passes = [gelu(a, b), gelu(b, c), gelu(c, a)] * 2
    # With room for two tiles only `a` is loaded; all others are overwritten before they are read.
    assert least_loads(passes, 2) == 1
    reads = [gelu(one, two) for one, two in ((a, b), (c, b), (a, b), (c, b))]
    assert least_loads(reads, 2) == 4
    assert least_loads(reads, 3) == 2
