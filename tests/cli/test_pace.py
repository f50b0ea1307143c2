"""The figures of a run: its time left, checked over whole runs with known durations, the smoothed loss and utilization."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.cli import pace as paces
from asynctile.cli.pace import Ahead, RunPace, Seconds


class Clock:
    """A stand-in for the module time."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(paces, "time", clock)
    return clock


def report(step: int, *, step_s: float = 1.0, **others: Any) -> Any:
    """Return the report of a step of 100 positions, of which 60 are trained on."""
    return SimpleNamespace(**{"step": step, "loss": 2.0, "tokens": 60, "step_s": step_s, "tokens_per_s": 100 / step_s,
                              "stall_s": 0.0, "played": True, **others})  # fmt: skip


def ahead(steps: int, **others: Any) -> Ahead:
    return Ahead(**{"steps": steps, "done": 0, "validate_every": 50, "save_every": 100, "flops_per_token": 1e6, **others})


def of_a_run(clock: Clock, steps: int, every: int, step_s: Any, validation_s: Any, save_s: float) -> list[tuple[float, float]]:
    """Return the predicted and the true time left after each step, in seconds."""
    pace, said = RunPace(ahead(steps, validate_every=every, save_every=2 * every)), []

    def validate(step: int) -> None:
        """Validate on four batches; time beyond 5 s falls to the first one."""
        each = min(validation_s(step), 5.0) / 4
        pace.validating(0, 4)
        clock.now += validation_s(step) - 3 * each
        for done in range(1, 5):
            clock.now += each * (done > 1)
            pace.validating(done, 4)
        pace.validated()

    validate(0)
    for step in range(1, steps + 1):
        clock.now += step_s(step)
        pace.step(report(step, played=step > 1))
        said.append((math.nan if pace.left_s is None else pace.left_s, clock.now))
        if step % every == 0 or step == steps:
            validate(step)
        if step % (2 * every) == 0 or step == steps:
            clock.now += save_s
            pace.saved()
    assert pace.left_s == 0.0
    return [(left, clock.now - at) for left, at in said]


def test_the_time_left_is_right_once_each_kind_of_work_was_done(clock: Clock) -> None:
    """The first step, the first played step and the first validation take long, because programs are recorded then."""

    def step_s(step: int) -> float:
        return {1: 60.0, 2: 9.0}.get(step, 1.0)

    said = of_a_run(clock, 400, 20, step_s, lambda step: 30.0 if step == 0 else 5.0, 3.0)
    assert all(math.isnan(left) for left, _ in said[:2])
    errors = [left - true for left, true in said]
    assert max(map(abs, errors[40:])) < 1e-6, "behind the first save all is known"
    assert max(map(abs, errors[2:40])) == pytest.approx(10 * 3.0), "before it, but for the saves"


def test_the_time_left_settles_when_the_duration_of_steps_varies(clock: Clock) -> None:
    rng = random.Random(3)
    said = of_a_run(clock, 500, 50, lambda step: rng.uniform(0.8, 1.2), lambda step: 5.0 if step else 12.0, 2.0)
    whole = said[0][1]
    assert max(abs(left - true) for left, true in said[50:]) < 0.04 * whole


def test_the_time_left_follows_steps_that_become_slower(clock: Clock) -> None:
    said = of_a_run(clock, 400, 50, lambda step: 1.0 if step < 200 else 2.0, lambda step: 0.0, 0.0)
    left, true = said[299]
    assert left == pytest.approx(true, rel=0.25)


def test_steps_by_coroutines_count_until_played_steps_were_timed(clock: Clock) -> None:
    pace = RunPace(ahead(1000, validate_every=1000, save_every=1000))
    said = []
    lasted = [(9, False), (4, False), (4, False), (7, True), (1, True), (4, False), (1, True)]
    for step, (step_s, played) in enumerate(lasted, 1):
        clock.now += step_s
        pace.step(report(step, played=played))
        said.append(None if pace.left_s is None else pace.left_s / (1000 - step))
    assert said[:5] == [None, 4, 4, 4, 1]
    assert said[5] == pytest.approx(1 + (4 - 1) * 2 / 3), "one of theirs behind played ones comes again"


def test_the_time_left_keeps_falling_within_a_step_and_waits_for_its_end(clock: Clock) -> None:
    pace = RunPace(ahead(10, validate_every=10, save_every=10))
    for step in range(1, 4):
        clock.now += 20.0
        pace.step(report(step))
    said = []
    for _ in range(3):
        said.append(pace.left)
        clock.now += 15.0
    assert said == ["2:20", "2:05", "2:00"]


def test_hours_are_written_as_hours(clock: Clock) -> None:
    pace = RunPace(ahead(1003, validate_every=2000, save_every=2000))
    for step in range(1, 4):
        clock.now += 10.0
        pace.step(report(step))
    assert pace.left == "2:46:40"


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 40))
def test_work_due_every_so_many_steps_and_after_the_last_is_counted(steps: int, every: int, last: int) -> None:
    due = [step for step in range(last + 1, steps + 1) if step % every == 0 or step == steps]
    assert paces.times_due(last, steps, every) == len(due)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_the_first_time_of_a_kind_is_left_out_and_later_ones_weigh_more(values: list[float]) -> None:
    seconds = Seconds()
    for value in values:
        seconds.add(value)
    weights = range(len(values))
    expected = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
    assert seconds.each == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_smoothed_loss_is_a_mean_of_the_finite_losses(clock: Clock) -> None:
    pace = RunPace(ahead(100))
    assert math.isnan(pace.smoothed_loss)
    for step, loss in enumerate([4.0, math.nan, 4.0, math.inf, 4.0], 1):
        pace.step(report(step, loss=loss))
    assert pace.smoothed_loss == pytest.approx(4.0)
    for step in range(6, 200):
        pace.step(report(step, loss=2.0))
    assert pace.smoothed_loss == pytest.approx(2.0, abs=1e-3)


def test_speed_and_utilization_count_all_positions_as_the_models_arithmetic_does(clock: Clock) -> None:
    known, unknown = RunPace(ahead(10, flops_per_s=4e8)), RunPace(ahead(10))
    for pace in (known, unknown):
        pace.step(report(1, step_s=0.5))
        pace.step(report(2, step_s=1.5))
    assert known.tokens_per_s == 100.0
    assert (known.utilization, unknown.utilization) == (0.25, None)
