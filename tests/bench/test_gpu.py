"""bench/gpu.sh: the order and time of its parts, the files it leaves, what it refuses, and a rehearsal.

No test can say what the parts find on a GPU. The rehearsal shows that they run from end to end. Their trainings are checked in
test_gpu_rows.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.bench.shell import ROOT, run

# An interpreter that prints its arguments and then does what the name of the part says.
STUB = """#!/usr/bin/env bash
case "$1" in
-) cat >/dev/null ;;
bench/gpu_report.py) echo "report ${*:2}" ;;
bench/gpu_smoke.py) echo "commit $COMMIT" ;;
bench/gpu_cubin.py) echo "cubin ${*:2}" ;;
-m) echo "modules ${*:2}" ;;
bench/gpu_largest.py)
    mkdir -p bench/results
    echo found >bench/results/cuda_h200_202611.json
    for _ in {1..100}; do
        sleep 0.1
        if [[ -s $OUT/cuda_h200_202611.json ]]; then echo "copied meanwhile"; break; fi
    done ;;
bench/gpu_link.py) echo "link fails"; exit 3 ;;
bench/gpu_kernels.py | bench/gpu_capped.py)
    echo "$1 ${*:2}"
    mkdir -p bench/results runs/rehearsal
    echo found >bench/results/cuda_h200_202611.json
    echo found >runs/rehearsal/cuda_rehearsal_202611.json
    if [[ $1 == *capped* ]]; then exec sleep 60; fi ;;
*) echo "$1" ;;
esac
"""


@pytest.fixture
def stubbed(tmp_path: Path) -> Path:
    """Return a folder with bench/gpu.sh and STUB as its interpreter `python`."""
    (tmp_path / "bench").mkdir()
    shutil.copy(ROOT / "bench" / "gpu.sh", tmp_path / "bench")
    (tmp_path / "python").write_text(STUB)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def test_a_part_that_fails_does_not_stop_the_others_and_the_table_comes_last(stubbed: Path) -> None:
    done = run(stubbed / "bench" / "gpu.sh", "link", "depth", PYTHON=str(stubbed / "python"))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("==")]
    assert lines[:4] == ["report check cuda:0", "bench/gpu_warm.py", "link fails", "bench/gpu_depth.py"]
    assert lines[-1].startswith("report table cuda:0 link:3:")
    assert " depth:0:" in lines[-1]


def test_all_parts_together_have_less_than_nine_minutes_and_pass_on_unused_time(stubbed: Path) -> None:
    done = run(stubbed / "bench" / "gpu.sh", "tests", "link", "memory", "depth", PYTHON=str(stubbed / "python"))
    limits = limits_of(done.stdout)
    assert list(limits) == ["tests", "link", "memory", "depth"]
    # Shares of 120, 15, 85 and 40: each of the time that is left, because no part used any.
    for found, most in zip(limits.values(), (525 * 120 / 260, 525 * 15 / 140, 525 * 85 / 125, 525), strict=True):
        assert most - 10 < found <= most


def test_one_part_alone_has_all_the_time(stubbed: Path) -> None:
    done = run(stubbed / "bench" / "gpu.sh", "link", PYTHON=str(stubbed / "python"))
    assert limits_of(done.stdout)["link"] > 500


def test_the_smoke_and_the_races_have_a_minute_each_however_much_time_there_is(stubbed: Path) -> None:
    limits = limits_of(run(stubbed / "bench" / "gpu.sh", "smoke", "race", PYTHON=str(stubbed / "python")).stdout)
    assert limits == {"smoke": 60, "race": 60}


def test_the_smoke_comes_first(stubbed: Path) -> None:
    said = run(stubbed / "bench" / "gpu.sh", "smoke", "depth", PYTHON=str(stubbed / "python")).stdout
    assert said.index("commit unknown") < said.index("bench/gpu_warm.py") < said.index("bench/gpu_depth.py")


def test_results_are_copied_while_a_part_still_runs(stubbed: Path) -> None:
    (stubbed / "out").mkdir()
    where = {"PYTHON": str(stubbed / "python"), "OUT": str(stubbed / "out"), "EVERY": "0.2"}
    assert "copied meanwhile" in run(stubbed / "bench" / "gpu.sh", "largest", **where).stdout


def test_prepared_files_are_used_and_the_commit_is_the_callers_or_the_prepared_one(stubbed: Path) -> None:
    prepared = stubbed / ".gpu"
    (prepared / "wheels").mkdir(parents=True)
    (prepared / "cubins").mkdir()
    (prepared / "wheels" / "frontend.whl").touch()
    (prepared / "commit").write_text("0123abc\n")
    said = run(stubbed / "bench" / "gpu.sh", "smoke", PYTHON=str(stubbed / "python")).stdout
    assert "modules pip install -q --no-index --no-deps" in said and said.count(".gpu/wheels/frontend.whl") == 1
    assert "cubin bring .gpu" in said and "commit 0123abc" in said
    assert "commit abc" in run(stubbed / "bench" / "gpu.sh", "smoke", PYTHON=str(stubbed / "python"), COMMIT="abc").stdout
    rehearsed = run(stubbed / "bench" / "gpu.sh", "--rehearse", "smoke", PYTHON=str(stubbed / "python")).stdout
    assert "modules" not in rehearsed and "cubin" not in rehearsed


def limits_of(said: str) -> dict[str, int]:
    """Return the seconds that each part was given, in order."""
    found = [line.split() for line in said.splitlines() if line.startswith("== ") and "at most" in line]
    return {words[1].rstrip(","): int(words[-2]) for words in found}


def test_a_part_ended_by_its_limit_leaves_its_findings_and_time_for_the_next(stubbed: Path) -> None:
    (stubbed / "out").mkdir()
    where = {"PYTHON": str(stubbed / "python"), "OUT": str(stubbed / "out"), "TOTAL": "7"}
    done = run(stubbed / "bench" / "gpu.sh", "--rehearse", "capped", "depth", **where)
    lines = done.stdout.splitlines()
    assert "bench/gpu_capped.py --rehearse --write" in lines
    assert "bench/gpu_depth.py" in lines
    assert re.search(r" capped:124:\d depth:0:", lines[-1])
    assert sorted(os.listdir(stubbed / "out")) == ["cuda_rehearsal_202611.json", "gpu.log"]


def test_results_and_the_whole_output_go_to_the_folder_that_comes_back(stubbed: Path) -> None:
    (stubbed / "out").mkdir()
    (stubbed / "bench" / "results").mkdir()
    (stubbed / "bench" / "results" / "cuda_a100_202601.json").write_text("older")
    os.utime(stubbed / "bench" / "results" / "cuda_a100_202601.json", (1, 1))
    run(stubbed / "bench" / "gpu.sh", "kernels", "link", PYTHON=str(stubbed / "python"), OUT=str(stubbed / "out"))
    assert sorted(os.listdir(stubbed / "out")) == ["cuda_h200_202611.json", "gpu.log"]
    log = (stubbed / "out" / "gpu.log").read_text()
    assert "gpu_kernels.py --write" in log and "report table" in log


def test_an_unknown_part_is_refused_in_one_line(stubbed: Path) -> None:
    done = run(stubbed / "bench" / "gpu.sh", "link", "kernel", PYTHON=str(stubbed / "python"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "bench/gpu.sh: no part is called 'kernel'; "
        "choose among: smoke tests race replay link kernels capped memory largest depth two"]  # fmt: skip


def test_a_missing_gpu_is_reported_in_one_line() -> None:
    if importlib.util.find_spec("cupy") and importlib.import_module("cupy").cuda.is_available():
        pytest.skip("there is a GPU here")
    done = run(ROOT / "bench" / "gpu.sh", PYTHON=sys.executable)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("bench/gpu.sh: ")
    assert "no GPU here" in line or "has no " in line


def test_a_missing_interpreter_is_reported_in_one_line() -> None:
    done = run(ROOT / "bench" / "gpu.sh", PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["bench/gpu.sh: /nowhere/python does not run; name an interpreter by PYTHON=..."]


@pytest.mark.reference
@pytest.mark.timeout(600)
def test_a_rehearsal_runs_every_part_and_keeps_its_rows(tmp_path: Path) -> None:
    """Run from a copy of the files that git would deliver, with this interpreter and the driver made of threads."""
    files = run("git", "ls-files", "-co", "--exclude-standard").stdout.split()
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file, follow_symlinks=False)
    parts = ["link", "depth", "two"]
    done = run(tmp_path / "bench" / "gpu.sh", "--rehearse", *parts, cwd=tmp_path, PYTHON=sys.executable, limit_s=500)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    assert "fall of TFLOP/s from 1 to 4 layers" in done.stdout
    (path,) = (tmp_path / "runs" / "rehearsal").glob("*.json")
    found = json.loads(path.read_text())["parts"]
    assert list(found) == parts
    assert all(part["configuration"]["attention"].startswith("cuDNN 9.16") for part in found.values())
