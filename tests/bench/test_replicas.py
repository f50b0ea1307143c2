"""The cost of replicas: the verdict on its target, and a short run of the benchmark."""

from __future__ import annotations

import sys
from typing import Any

import pytest


@pytest.mark.parametrize(("slower", "said"), [(1.04, "met"), (1.06, "MISSED")])
def test_the_seconds_of_replicas_are_judged_against_one_replica(bench: Any, slower: float, said: str) -> None:
    replicas = bench("bench_replicas")
    counts = {1: 100, 2: 110, 4: 130}
    seconds = {number: [(slower if number > 1 else 1.0) * (1 + turn / 10) for turn in range(9)] for number in counts}
    one, two, four = replicas.results("", counts, counts, seconds, replicas.BOUNDS[512]).rows
    assert one[2:] == [None, 1e-4, None, pytest.approx(1400), None, None]
    assert (two[2], four[2], four[4]) == ("10%", "30%", "30%")
    assert four[7] == f"at most 5 % more: {said}"


async def test_the_benchmark_runs(bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_replicas.py", "--rounds=6", "--steps=1", "--widths", "128"])
    await bench("bench_replicas").main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("  1 ", "  2 ", "  4 "))]
    assert [int(row[1].replace(",", "")) for row in rows] == sorted({int(row[1].replace(",", "")) for row in rows})
    assert len(rows) == 3
