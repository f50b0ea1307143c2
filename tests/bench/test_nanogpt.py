"""The benchmark of nanoGPT's settings compares only trainings that are the same."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.bench.shell import run

pytestmark = pytest.mark.reference


@pytest.fixture
def nanogpt(bench: Any) -> Any:
    return bench("bench_nanogpt")


def sides(nanogpt: Any, ours: list[float], held_out: float) -> Any:
    """Return the sides after a training of eight pieces of one step, with a noise of 0.2 in the last loss."""
    found = {}
    for name, losses, last in (
        (nanogpt.OURS, ours, held_out), (nanogpt.OTHERS, [9.0] * 8, 2.2), (nanogpt.EAGER, [4.0] * 8, 2.0),
        (nanogpt.COMPILED, [4.0] * 7 + [4.5], 2.1)):  # fmt: skip
        training = nanogpt.Training(None, 1)
        training.losses, training.cpu_ms, training.played = losses, [1.0] * 8, [True] * 8
        found[name] = nanogpt.Side(training, None, tuple(float(n) for n in range(1, 9)), last)
    return found


def goals(nanogpt: Any, **found: Any) -> list[str]:
    tables = nanogpt.results("small", sides(nanogpt, **found))
    return [row[-1] for table in tables[1:] for row in table.rows if row[-1] is not None]


@pytest.mark.parametrize(
    ("ours", "held_out", "met"),
    [
        ([4.0] * 7 + [4.0009], 1.9, [True, True]),
        ([4.0] * 6 + [4.0011, 4.0], 2.1, [False, True]),
        ([4.0] * 7 + [float("nan")], float("nan"), [False, False]),
        ([4.0] * 8, 2.3, [True, False]),
    ],
)
def test_losses_must_be_close_at_every_step_and_within_noise_at_the_end(
    nanogpt: Any, ours: list[float], held_out: float, met: list[bool]
) -> None:
    found = goals(nanogpt, ours=ours, held_out=held_out)
    assert [goal.startswith("at most 0.") and goal.endswith(": met") for goal in found] == met
    assert all(goal.endswith((": met", ": MISSED")) for goal in found)


def test_later_steps_are_told_only_by_their_difference(nanogpt: Any) -> None:
    found = sides(nanogpt, [4.0] * 300, 2.0)
    for side in found.values():
        side.training.losses = [4.0] * 300
    found[nanogpt.OURS].training.losses = [4.0] * 250 + [5.0] * 50
    rows = {row[0]: row[1:] for row in nanogpt.results("small", found)[1].rows}
    assert rows[200] == ("0", "0", "at most 0.001: met")
    assert rows[300] == ("1", "0", None)


def test_both_curves_are_drawn(nanogpt: Any) -> None:
    drawn = nanogpt.picture({"small": sides(nanogpt, [4.0] * 7 + [4.0009], 2.0)})
    assert drawn.startswith(b"\x89PNG")
    assert drawn != nanogpt.picture({"small": sides(nanogpt, [4.0] * 7 + [4.5], 2.0)})


def test_a_few_steps_go_as_in_pytorch() -> None:
    command = ("bench/bench_nanogpt.py", "--settings", "small", "--steps", "14", "--pieces", "7", "--no-compiled")
    done = run(sys.executable, *command, OMP_WAIT_POLICY="passive")
    assert done.returncode == 0, done.stderr
    assert "at most 0.001: met" in done.stdout
    assert "MISSED" not in done.stdout


def test_settings_that_give_no_interval_are_refused() -> None:
    for words in (("--pieces", "6"), ("--settings", "middle")):
        done = run(sys.executable, "bench/bench_nanogpt.py", *words)
        assert done.returncode == 1
        assert done.stderr == "give at least --pieces 7, for an interval, and --settings from small, large\n"
