"""A cap above the memory that is here: one warning with both numbers, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from asynctile.cli import placement
from asynctile.storage.limits import Limit
from tests.cli.conftest import Program

pytestmark = pytest.mark.filterwarnings("always")
SAID = "--{} of {} is above the memory cgroup /jobs of 64.00 MiB here: a run that fills it swaps or is killed; choose less"


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [Limit(1 << 20, 1 << 30, "RAM", is_of_machine=True), Limit(1 << 21, 1 << 26, "memory cgroup /jobs")]
    monkeypatch.setattr(placement, "found", lambda: limits)


def test_a_cap_above_a_limit_is_warned_of_once_by_train_and_plan(train: Program, program: Program, tmp_path: Path) -> None:
    said = SAID.format("host-memory", "65.00 MiB")
    status, _, err = train("--out", tmp_path / "run", "--host-memory", "65MiB")
    assert (status, err.count("\n")) == (0, 1) and err.startswith(f"asynctile train: {said}")
    status, _, err = program("train", "--resume", "--out", tmp_path / "run", "--steps", 7)
    assert (status, err.count("\n")) == (0, 1) and err.startswith(f"asynctile train: {said}")
    status, _, err = program("plan", "--resume", "--out", tmp_path / "run")
    assert (status, err.count("\n")) == (0, 1) and err.startswith(f"asynctile plan: {said}")


def test_the_memory_of_an_emulated_device_is_ram_too(program: Program) -> None:
    words = ("plan", "--device", "emulated", "--device-memory", "1GiB")
    assert program(*words)[2].startswith(f"asynctile plan: {SAID.format('device-memory', '1.00 GiB')}")


def test_the_memory_of_several_emulated_devices_counts_together(program: Program) -> None:
    words = ("plan", "--replicas", 4, "--device", "emulated*3", "--device-memory")
    said = SAID.format("device-memory", "30.00 MiB on each of 3 devices")
    assert program(*words, "30MiB")[2].startswith(f"asynctile plan: {said}") and program(*words, "20MiB")[2] == ""


@pytest.mark.parametrize("words", [(), ("--host-memory", "64MiB"), ("--device", "cuda:0", "--device-memory", "1GiB")])
def test_caps_within_the_limits_are_not_warned_of(program: Program, words: tuple[str, ...]) -> None:
    assert program("plan", *words)[::2] == (0, "")
