"""`plan`, `info`, `--help`, and the program in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asynctile.measure import known
from asynctile.schedule.rates import CORES, Rates
from tests.cli.conftest import Program
from tests.settle import HANG_S

ROOT = Path(__file__).resolve().parents[2]


def test_plan(program: Program) -> None:
    status, out, err = program("plan", "--device", "emulated", "--device-memory", "16MiB", "--link-rate", "1GB")
    assert (status, err) == (0, "")
    for said in ("states", "floor", "uploaded", "bound"):
        assert said in out


def test_plan_refuses_a_device_cap_where_auto_is_cpu_as_train_does(
    program: Program, train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynctile.device.gpu_count", lambda: 0)
    words = ("--device", "auto", "--device-memory", "1GiB")
    said = "--device-memory does not go with device 'cpu': RAM is the device there; give --host-memory\n"
    assert program("plan", *words) == (2, "", f"asynctile plan: {said}")
    assert train("--out", tmp_path / "run", *words)[::2] == (2, f"asynctile train: {said}")


@pytest.mark.parametrize(("update", "count"), [("device", "0"), ("host", r"(\d+)")])
def test_plan_says_where_weights_are_updated(program: Program, update: str, count: str) -> None:
    status, out, _ = program("plan", "--device", "emulated", "--device-memory", "1MiB", "--update", update)
    assert status == 0
    found = re.search(rf"weight tiles +(\d+), {count} of them updated on the host", out)
    assert found is not None
    assert len(set(found.groups())) == 1


def test_a_plan_that_takes_long_says_what_it_works_out(
    program: Program, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.is_over = True
    monkeypatch.setattr("asynctile.cli.planning.known", lambda device, precision: None)
    status, out, err = program("plan", "--host-memory", "16MiB", "--spill", ".", "--tile", 128)
    assert status == 0 and "asynctile plan" not in out
    *_, rate, passes, places, times = err.splitlines()
    assert rate == "asynctile plan: measuring the speed of this machine ..."
    assert passes == "asynctile plan: choosing how many passes rows take and which activations are kept ..."
    assert re.fullmatch(r"asynctile plan: placing the tiles of [\d,]+ operations ...", places)
    assert times == "asynctile plan: estimating the time of a step ..."


def test_plan_estimates_with_the_rates_of_this_machine_or_with_given_rates(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr("asynctile.cli.planning.known", lambda device, precision: replace(CORES, flops_per_s=123e9 * cores))
    assert "at 123 GFLOP/s a core" in program("plan")[1]
    assert "at 77 GFLOP/s a core" in program("plan", "--gflops", 77 * cores)[1]
    monkeypatch.undo()
    words = ("--device", "cuda:0", "--model", "gpt2", "--batch-size", 1, "--tile", 768)
    assert "products at 33 TFLOP/s" in program("plan", *words, "--gflops", 33_000)[1]


def test_plan_measures_unmeasured_cores_and_keeps_the_result(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = len(os.sched_getaffinity(0))
    measured: list[Rates | None] = [None, replace(CORES, flops_per_s=2.0**37 * cores)]
    monkeypatch.setattr(known, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(known, "measure_cores", lambda: measured.pop(0))
    for said in (f"{CORES.flops_per_s / cores / 1e9:.0f}", "137", "137"):
        assert f"at {said} GFLOP/s a core" in program("plan")[1]
    assert measured == []


def test_plan_of_a_large_model_makes_no_model(program: Program) -> None:
    words = ("--device", "emulated", "--device-memory", "256MiB", "--batch-size", 1, "--seq-len", 256)
    status, out, _ = program("plan", "--model", "gpt2", *words)
    assert status == 0 and "50257" in out


def test_plan_of_a_gpu_needs_no_gpu_and_names_the_assumed_rates(program: Program) -> None:
    words = ("--device", "cuda:0", "--model", "gpt2", "--batch-size", 4, "--device-memory", "512MiB", "--tile", 768)
    status, out, err = program("plan", *words, "--precision", "bf16")
    assert (status, err) == (0, "")
    for said in ("copies of matrices in bf16", "row tiles of up to 3,072 tokens", "the link at an assumed 50 GB/s each way",
                 "products at an assumed 780 TFLOP/s"):
        assert said in out
    status, wide, err = program("plan", *words)
    assert (status, err) == (0, "")
    assert "assumed 50 TFLOP/s" in wide and "copies" not in wide


def test_plan_of_several_gpus_needs_none_and_counts_the_bytes_of_all(program: Program) -> None:
    words = ("--batch-size", 8, "--replicas", 8, "--seq-len", 16, "--device-memory", "8MiB", "--tile", 64)
    status, out, err = program("plan", *words, "--device", "cuda:0-7")
    assert (status, err) == (0, "")
    assert re.search(r"devices +8, which share the replicas; bytes are those of all", out)
    assert "TFLOP/s on each GPU" in out
    status, out, err = program("plan", "--batch-size", 8, "--replicas", 4, "--device", "cuda:0-7")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert "--device cuda:0-7 has 8 devices, but --replicas is 4" in err


def test_a_plan_of_several_nodes_needs_no_address_and_counts_what_goes_between_them(program: Program) -> None:
    words = ("--batch-size", 4, "--replicas", 4, "--nodes", 2, "--device", "emulated")
    status, out, err = program("plan", *words)
    assert (status, err) == (0, "")
    assert re.search(r"nodes +2, which share the replicas; figures are those of node 0", out)
    assert re.search(r"sent to other nodes a step +[1-9]", out) and "the network at an assumed 25 Gbit/s each way" in out
    fast, slow = (json.loads(program("plan", *words, "--json", "--gbits", rate)[1]) for rate in (100, 0.1))
    assert fast["sent_bytes"] == slow["sent_bytes"] and fast["step_s"] < slow["step_s"]
    assert slow["bound"] in ("the way to other nodes", "the way from other nodes")


def test_emulated_devices_share_the_cores_in_the_times_of_a_plan(program: Program) -> None:
    words = ("--batch-size", 4, "--replicas", 4, "--gflops", 1, "--update", "device")
    one, four = (json.loads(program("plan", *words, "--json", "--device", device)[1]) for device in ("emulated", "emulated*4"))
    assert four["devices"] == 4 and four["flops"] / 1e9 <= four["step_s"] < 2 * one["step_s"] < 4 * four["step_s"]


def test_a_plan_for_another_machine_fills_in_its_devices_and_memory_and_gives_a_verdict(program: Program) -> None:
    status, out, err = program("plan", "--machine", "h100", "--precision", "bf16")
    assert (status, err) == (0, "")
    verdict, machine, *rows = out.splitlines()
    assert re.fullmatch(r"verdict +fits: about \S+ m?s a step, [\d,]+ tokens/s, \S+ \w+ for 2,000 steps", verdict)
    assert machine.endswith("NVIDIA H100 SXM 80 GB, one GPU")
    assert any(row.endswith("products at 791 TFLOP/s, the link at 50 GB/s each way") for row in rows)
    words = ("--batch-size", 8, "--replicas", 4, "--seq-len", 16)
    found = json.loads(program("plan", "--machine", "a100-node", "--json", *words)[1])
    assert (found["device"], found["devices"], found["device_bytes"]) == ("cuda:0-3", 4, int(79.25 * 2**30))
    assert found["fits"] is True and found["tokens_per_s"] * found["step_s"] == pytest.approx(8 * 16)
    assert found["all_steps_s"] == 2000 * found["step_s"] and found["bound"] == next(iter(found["busy"]))


def small_machine(path: Path, *, ram: str, disk: str) -> Path:
    """Write a machine of two cores with little memory."""
    path.write_text(f"""
        title = "a small machine"
        devices = {{kind = "cpu", count = 2, memory_per_s = "20GB", operation_s = 1e-6, flops_per_s = {{fp32 = 1e11}}}}
        ram = {{memory = "{ram}", updated_per_s = "20GB", copied_per_s = "10GB"}}
        {f'disk = {{memory = "{disk}", per_s = "1GB"}}' if disk else ""}
    """)
    return path


def test_a_plan_takes_the_disk_of_a_machine_whose_ram_is_too_small(program: Program, tmp_path: Path) -> None:
    path = small_machine(tmp_path / "machine.toml", ram="6MiB", disk="1GiB")
    status, out, err = program("plan", "--machine", path)
    assert (status, err) == (0, "")
    assert re.match(r"verdict +fits, with [\d.]+ MiB on the disk \(--spill\): about", out)
    assert re.search(r"read from the spill folder a step +[\d.]+ MiB", out)
    assert re.match(r"verdict +fits: ", program("plan", "--machine", small_machine(path, ram="1GiB", disk=""))[1])


def test_a_plan_says_by_how_much_a_step_does_not_fit(program: Program, tmp_path: Path) -> None:
    path = small_machine(tmp_path / "machine.toml", ram="6MiB", disk="1MiB")
    status, out, err = program("plan", "--machine", path)
    assert (status, err) == (1, "")
    assert re.match(r"verdict +does not fit: tiles need [\d.]+ MiB of disk, [\d.]+ MiB more than there is\n", out)
    status, out, err = program("plan", "--machine", small_machine(path, ram="6MiB", disk=""))
    assert (status, out) == (2, "") and err.count("\n") == 1 and "--host-memory" in err


@pytest.mark.parametrize(("words", "said"), [
    (("--machine", "h300"), "--machine 'h300' is neither a file nor one of a100-40gb"),
    (("--machine", "h100", "--device", "cpu"), "--device cpu is not on NVIDIA H100 SXM 80 GB, one GPU, which has cuda:0"),
    (("--machine", "h100", "--device-memory", "1TiB"), "--device-memory of 1.00 TiB is above the 78.50 GiB"),
    (("--machine", "laptop", "--host-memory", "1TiB"), "--host-memory of 1.00 TiB is above the 13.41 GiB"),
    (("--machine", "laptop", "--precision", "bf16"), "precision"),
])  # fmt: skip
def test_a_plan_for_another_machine_refuses_what_it_does_not_have(program: Program, words: tuple[Any, ...], said: str) -> None:
    status, out, err = program("plan", *words)
    assert (status, out) == (2, "") and err.count("\n") == 1 and said in err


def test_info(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    status, out, err = program("info")
    assert (status, err) == (0, "")
    for said in ("cpu", "cuda:0", "RAM", "BLAS", "core", "loop", "numba", ", 1 thread\n", "OPENBLAS_CORETYPE=Haswell"):
        assert said in out
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    assert "OPENBLAS_CORETYPE" not in program("info")[1]


def test_info_names_a_gpu_and_what_it_uses(program: Program, monkeypatch: pytest.MonkeyPatch, soft_gpu: Any) -> None:
    monkeypatch.setattr("asynctile.cli.info.gpu_count", lambda: 2)
    monkeypatch.setattr("asynctile.cli.info.open_driver", soft_gpu.open)
    status, out, err = program("info")
    assert (status, err) == (0, "")
    assert "compute capability 9.0, 1.00 GiB of 1.00 GiB free" in out
    assert "cuda:0 epilogues" in out and "cuda:1 epilogues" in out
    assert re.search(r"cuda:0 attention +not used: there is no cuDNN", out)
    soft_gpu(attends=True)
    assert re.search(r"cuda:1 attention +cuDNN 9\.16", program("info")[1])
    assert all(driver.memory()[0] == driver.memory()[1] for driver in soft_gpu.opened)


def test_the_module_run_into_a_closed_pipe_ends_cleanly() -> None:
    command = f"{sys.executable} -m asynctile info | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.stderr == ""
