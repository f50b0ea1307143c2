"""`asynctile info --measure` writes a machine that plans can read, and leaves nothing behind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from asynctile.cli import measured, measured_gpus, measured_transfers
from asynctile.measure import gpu_times
from asynctile.measure.hardware import hardware
from asynctile.schedule.rates import CORES
from tests.cli.conftest import Program
from tests.cuda.graph import CudaError


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Measure small tiles and few blocks, in an empty folder."""
    monkeypatch.setattr(measured, "EDGES", (64,))
    monkeypatch.setattr(measured, "BLOCKS", 2)
    monkeypatch.setattr(measured_transfers, "COPIES", 32)
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
    assert {"gemm", "attention", "adamw", "layernorm_whole", "cross_entropy", "carry"} <= here.verbs[64].keys()
    assert here.verbs[64]["carry"] < here.copied_per_s  # a transfer costs the cores more than its bytes
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


@pytest.fixture
def small(quick: Path, monkeypatch: pytest.MonkeyPatch, soft_gpu: Any) -> Any:
    """Measure few small calls and copies on GPUs that are threads."""
    for name, value in {"TRIES": 1, "APART": 0, "FEWEST": 2, "SMALLEST": 4, "COPY_NBYTES": 1 << 12, "COPIES": 2}.items():
        monkeypatch.setattr(gpu_times, name, value)
    monkeypatch.setattr(measured_gpus, "EDGES", (64,))
    monkeypatch.setattr(measured_gpus, "HEAD", 32)
    soft_gpu(nbytes=2 << 30)
    return soft_gpu


@pytest.mark.parametrize(("device", "count", "precision"), [("cuda:0", 1, "bf16"), ("cuda:0-1", 2, "fp32")])
def test_a_measured_gpu_is_a_machine_that_a_plan_takes(
    program: Program, quick: Path, small: Any, device: str, count: int, precision: str
) -> None:
    status, out, err = program("info", "--measure", "--device", device, "--precision", precision)
    assert status == 0 and err.count("\n") == 5 and list(quick.iterdir()) == []
    (quick / "gpu.toml").write_text(out)
    here = hardware("gpu.toml")
    assert (here.device, here.count, here.copied_per_s) == (device, count, 7e9)
    assert here.memory is not None and (1200 << 20) < here.memory <= (1280 << 20)  # all but 768 MiB and the scratch of kernels
    assert here.flops_per_s.keys() == {precision}
    assert (here.passed_per_s is None) == (count == 1)
    assert {"gemm", "attention", "layernorm_whole"} <= here.verbs[64].keys()
    assert all(driver.memory()[0] == 2 << 30 and not driver.pinned for driver in small.opened)
    words = ("plan", "--machine", "gpu.toml", "--batch-size", 1, "--seq-len", 16, "--precision")
    status, out, err = program(*words, precision)
    assert out.startswith("verdict  "), err
    status, _, err = program(*words, "tf32")
    assert status == 2 and f"has no rate of products in tf32; its file has {precision}" in err


def test_a_gpu_that_fails_is_not_measured(program: Program, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(*_: Any) -> NoReturn:
        raise CudaError("cudaErrorIllegalAddress", "bad")

    monkeypatch.setattr("tests.cuda.driver.SoftDriver.elapsed_s", bad)
    status, out, err = program("info", "--measure", "--device", "cuda:0")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "asynctile info: cuda:0 cannot be measured: cudaErrorIllegalAddress: bad"


@pytest.mark.parametrize(("words", "said"), [
    (("--measure", "--device", "emulated"), "--device emulated cannot be measured"),
    (("--measure", "--device", "cpu", "--precision", "bf16"), "precision 'bf16' needs device='cuda:N'"),
    (("--device", "cuda:0"), "--device says what --measure measures"),
])  # fmt: skip
def test_devices_that_cannot_be_measured_are_refused(program: Program, words: tuple[str, ...], said: str) -> None:
    status, out, err = program("info", *words)
    assert (status, out) == (2, "") and err.count("\n") == 1 and said in err
