"""`asynctile info --measure` writes a machine that plans can read, and leaves nothing behind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from asynctile.cli import measured
from asynctile.measure.hardware import hardware
from asynctile.schedule.rates import CORES
from tests.cli.conftest import Program


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measure small tiles and few blocks, in an empty folder."""
    monkeypatch.setattr(measured, "EDGES", (64,))
    monkeypatch.setattr(measured, "BLOCKS", 2)
    monkeypatch.setattr("asynctile.layers.verbs.APART", 0)
    monkeypatch.setattr(measured, "measure_cores", lambda: replace(CORES, copied_per_s=7e9))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_measured_machine_is_a_file_that_a_plan_takes(program: Program, quick: Path) -> None:
    status, out, err = program("info", "--measure")
    assert status == 0 and err.count("\n") == 3 and list(quick.iterdir()) == []
    (quick / "here.toml").write_text(out)
    here = hardware("here.toml")
    assert (here.device, here.count, here.copied_per_s) == ("cpu", len(os.sched_getaffinity(0)), 7e9)
    assert {"gemm", "attention", "adamw", "layernorm_whole", "cross_entropy"} <= here.verbs[64].keys()
    assert here.disk_per_s > 0 and here.disk > 0 and here.ram > 1 << 30
    assert program("plan", "--machine", "here.toml")[1].startswith("verdict  ")
    status, out, _ = program("plan", "--machine", "here.toml", "--device", "emulated", "--device-memory", "4MiB")
    assert status == 0 and "uploaded a step" in out


def test_a_machine_without_spare_memory_cannot_be_measured(
    program: Program, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "measure_cores", lambda: None)
    status, out, err = program("info", "--measure")
    assert (status, out) == (2, "") and "too little spare RAM" in err
