"""The benchmark of shares: a window counts steps in part, trainings run at the same time, and each share is judged."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest


def test_a_step_that_crosses_the_end_of_the_window_counts_in_part(bench: Any) -> None:
    steps = bench("window").Steps(None, (None, None))
    steps.ends = [0.0, 1.0, 3.0, 4.0]
    assert steps.rate(0.5, 2.5) == pytest.approx((0.5 + 0.75) / 2)
    assert steps.rate(0.0, 4.0) == pytest.approx(3 / 4)


async def test_trainings_run_at_the_same_time_and_one_that_fails_ends_the_others(bench: Any) -> None:
    window, met = bench("window"), asyncio.Barrier(2)

    class Failing:
        left = 5

        async def step(self, *inputs: Any) -> None:
            assert inputs == (1, 2)
            await met.wait()  # for a step of the other
            self.left -= 1
            if not self.left:
                raise RuntimeError("no more")

    class Other(Failing):
        left = 100

        async def step(self, *inputs: Any) -> None:
            if failing.left:
                await super().step(*inputs)

    failing = Failing()
    with pytest.raises(RuntimeError, match="no more"):
        await window.rates([window.Steps(one, (1, 2)) for one in (failing, Other())], 60.0)


def together(shares: Any, first: float, second: float) -> Any:
    got = {shares.ALONE: [[10.0]], "1 and 1": [[first, second]], "3 and 1": [[7.5, 2.5]]}
    return {name: SimpleNamespace(got=values) for name, values in got.items()}


@pytest.mark.parametrize(("first", "part", "whole"), [(5.0, "met", "met"), (3.0, "MISSED", "MISSED"), (6.5, "MISSED", "met")])
def test_a_single_part_and_the_sum_of_two_are_judged_apart(bench: Any, first: float, part: str, whole: str) -> None:
    shares = bench("bench_shares")
    _, equal, other = shares.results(together(shares, first, 5.0)).rows
    assert equal[3] == pytest.approx(first / (first + 5)) and part in equal[4]
    assert equal[5] == pytest.approx((first + 5) / 10) and whole in equal[6]
    assert "met" in other[4] and "met" in other[6]


async def test_the_benchmark_runs(bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_shares.py", "--rounds=1", "--seconds=0.05", "--batch=1"])
    await bench("bench_shares").main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("  1 and 1", "  3 and 1"))]
    assert len(rows) == 2
    assert all(float(value) > 0 for row in rows for value in row[3:6])
