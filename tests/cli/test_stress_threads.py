"""Scenario `threads` of stress: it finds a thread that closing asks for; a pids cgroup refuses as faults in Python do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli.stress import threads
from asynctile.loop.keeper import Keeper
from tests.cli.conftest import Program

pytestmark = pytest.mark.laws


def stress(program: Program, folder: Path, rounds: int) -> tuple[int, dict[str, Any]]:
    """Return the status of so many rounds, and their report."""
    report = folder / "report.json"
    status, _, _ = program("stress", "--scenario", "threads", "--rounds", rounds, "--seed", 1, "--spill", folder,
                           "--report", report)  # fmt: skip
    return status, json.loads(report.read_text())


def test_an_engine_that_asks_for_a_thread_as_it_closes_is_found(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Keeper.last

    def asks(self: Keeper, work: Callable[[], None], end: Any) -> None:
        try:
            threading.Thread(target=bool, name="asynctile-closing").start()
        finally:
            last(self, work, end)  # otherwise its thread would wait in the tests after this one

    monkeypatch.setattr(Keeper, "last", asks)
    status, found = stress(program, tmp_path, 12)
    assert status == 1
    assert any("can't start new thread" in failure["what"] for failure in found["failures"])


def test_a_training_in_a_pids_cgroup_ends_well_or_with_one_line(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threads.pids_group(9) as group:
        if group is None:
            pytest.skip("this machine lets nobody here make a pids cgroup")
    monkeypatch.setattr(threads, "BY_KERNEL", 1.0)
    status, found = stress(program, tmp_path, 2)
    assert (status, found["failures"]) == (0, [])
    assert found["survived"] + found["reported"] == found["faulted"] == 2
