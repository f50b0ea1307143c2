"""bench/gpu.sh and what its parts share, as far as it needs no GPU: order, time, records, refusals, arithmetic, a rehearsal.

What the parts find on a GPU no test can say; that they run from end to end is shown by a rehearsal. What they train is planned
in test_gpu_rows.py.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asynctile.demand import measure
from asynctile.layers import GPT2Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import plan_step
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]
HARMFUL = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # bench/common.py starts its program anew where they are set


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """Imports a module of bench/ by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        for name in HARMFUL:
            patch.delenv(name, raising=False)
        yield importlib.import_module


def clean(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in (*HARMFUL, "OUT", "COMMIT")} | more


def run(*command: str | Path, cwd: Path = ROOT, limit_s: float = 100, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=clean(**more), capture_output=True, text=True, timeout=limit_s, check=False)


# An interpreter that says what it was asked, and does what the name of the part says.
STUB = """#!/usr/bin/env bash
case "$1" in
-) cat >/dev/null ;;
bench/gpu_report.py) echo "report ${*:2}" ;;
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
    """A folder with bench/gpu.sh, and `python` as its interpreter."""
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


def test_all_parts_together_have_less_than_nine_minutes_and_what_one_leaves_the_next_has(stubbed: Path) -> None:
    done = run(stubbed / "bench" / "gpu.sh", "tests", "link", "memory", "depth", PYTHON=str(stubbed / "python"))
    limits = limits_of(done.stdout)
    assert list(limits) == ["tests", "link", "memory", "depth"]
    # Shares of 90, 15, 100 and 50: of what is left each time, as nobody used any.
    for found, most in zip(limits.values(), (525 * 90 / 255, 525 * 15 / 165, 525 * 100 / 150, 525), strict=True):
        assert most - 10 < found <= most


def test_one_part_alone_has_all_the_time(stubbed: Path) -> None:
    done = run(stubbed / "bench" / "gpu.sh", "link", PYTHON=str(stubbed / "python"))
    assert limits_of(done.stdout)["link"] > 500


def limits_of(said: str) -> dict[str, int]:
    """Seconds that each part was given, in order."""
    found = [line.split() for line in said.splitlines() if line.startswith("== ") and "at most" in line]
    return {words[1].rstrip(","): int(words[-2]) for words in found}


def test_a_part_that_its_limit_ends_leaves_what_it_had_found_and_time_for_the_next(stubbed: Path) -> None:
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


def test_a_part_that_does_not_exist_is_one_line(stubbed: Path) -> None:
    done = run(stubbed / "bench" / "gpu.sh", "link", "kernel", PYTHON=str(stubbed / "python"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "bench/gpu.sh: no part is called 'kernel'; choose among: tests link kernels capped memory largest depth"]  # fmt: skip


def test_where_there_is_no_gpu_it_is_one_line() -> None:
    if importlib.util.find_spec("cupy") and importlib.import_module("cupy").cuda.is_available():
        pytest.skip("there is a GPU here")
    done = run(ROOT / "bench" / "gpu.sh", PYTHON=sys.executable)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("bench/gpu.sh: ")
    assert "no GPU here" in line or "has no " in line


def test_an_interpreter_that_is_not_there_is_one_line() -> None:
    done = run(ROOT / "bench" / "gpu.sh", PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["bench/gpu.sh: /nowhere/python does not run; name an interpreter by PYTHON=..."]


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("NVIDIA H200", "cuda_h200_202611"), ("NVIDIA A100-SXM4-80GB", "cuda_a100-sxm4-80gb_202611"), ("?", "cuda_gpu_202611")],
)
def test_results_are_named_by_theme_gpu_and_month(bench: Any, gpu: str, name: str) -> None:
    assert bench("gpu_record").results_name(gpu, "2026-11-21") == name


def section_of(part: str, value: float, gpu: str = "NVIDIA H200") -> dict[str, Any]:
    table = {"title": f"{part}: what was wanted", "columns": ["what", "measured", "wanted"], "rows": [["speed", value, None]]}
    return {"question": f"How is {part}?", "configuration": {"tile": 512}, "machine": {"gpu": gpu, "day": "2026-11-21"},
            "tables": [table]}  # fmt: skip


def test_a_part_replaces_its_own_section_and_leaves_those_of_others(bench: Any, tmp_path: Path) -> None:
    record = bench("gpu_record")
    for part, value in (("depth", 1.0), ("link", 2.0), ("depth", 3.0)):
        path = record.merge(tmp_path, part, section_of(part, value))
    whole = json.loads(path.read_text())
    assert list(whole["parts"]) == ["link", "depth"], "in the order of bench/gpu.sh"
    assert whole["parts"]["depth"]["tables"][-1]["rows"] == [["speed", 3.0, None]]
    text = path.with_suffix(".md").read_text()
    assert text.index("## link") < text.index("## depth")
    assert "How is depth?" in text and "- tile: 512" in text and "| speed | 3 |  |" in text
    assert sorted(os.listdir(tmp_path)) == ["cuda_h200_202611.json", "cuda_h200_202611.md"]


def test_the_short_table_says_how_each_part_ended(bench: Any) -> None:
    whole = {"parts": {"link": section_of("link", 2.0), "depth": section_of("depth", 1.0)}}
    ran = [("tests", 1, 30), ("link", 0, 9), ("depth", 124, 60), ("largest", -1, 0)]
    assert bench("gpu_report").short_table(whole, ran).rows == [
        ("tests", "status 1 after 30 s", None, None),
        ("link", "9 s", None, None),
        ("", "speed", 2.0, None),
        ("depth", "stopped after 60 s; rows before that count", None, None),
        ("", "speed", 1.0, None),
        ("largest", "not run: the time was up", None, None),
    ]


def rehearsal(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(device="emulated", precision="fp32", write=False, **more)


def test_what_fails_is_a_row_and_the_part_goes_on(bench: Any) -> None:
    section = bench("gpu_record").Section("link", "Is it fast?", rehearsal())
    table = section.table("speed", "model", "cap", "s", "note")
    with section.row(table, "gpt2", 0.25):
        raise MemoryError("no room\nfor it")
    with section.row(table, "gpt2-xl"):
        section.put(table, {"model": "gpt2-xl", "s": 1.5})
    assert table.rows == [("gpt2", 0.25, None, "failed: MemoryError: no room"), ("gpt2-xl", None, 1.5, None)]


def test_a_rehearsal_cannot_be_written_and_a_gpu_that_is_not_there_not_measured(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = bench("gpu_common")
    monkeypatch.setattr(sys, "argv", ["gpu_link.py", "--device", "emulated", "--write"])
    with pytest.raises(SystemExit, match="--write is for results of a GPU"):
        common.options_of("", ({}, {}))
    monkeypatch.setattr(common, "no_gpu", lambda: "it is elsewhere")
    monkeypatch.setattr(sys, "argv", ["gpu_link.py"])
    with pytest.raises(SystemExit, match="no GPU to measure on: it is elsewhere"):
        common.options_of("", ({}, {}))


@pytest.mark.parametrize("memory", [10, 29, 30, 31, 49, 50, 1000])
def test_as_many_layers_as_fit_and_not_one_more(bench: Any, memory: int) -> None:
    def needed(layers: int) -> int:
        return 10 + 20 * layers

    layers = bench("gpu_rows").layers_in(memory, needed)
    assert layers == 0 or needed(layers) <= memory
    assert needed(layers + 1) > memory


def test_the_memory_of_a_step_grows_by_the_same_with_every_layer() -> None:
    """What layers_in takes for granted."""

    def needed(layers: int) -> int:
        config = GPT2Config(n_layer=layers, n_head=2, n_embd=64, block_size=64, vocab_size=300)
        plan = plan_step(config, batch_size=2, seq_len=64, tile=64, device="cuda:0", device_memory="1MiB", precision="bf16")
        return plan.host_bytes

    one, two = needed(1), needed(2)
    assert [needed(layers) for layers in (3, 7)] == [two + (two - one), two + 5 * (two - one)]


@pytest.mark.parametrize("update", ["device", "host"])
def test_the_yardstick_for_bytes_is_below_what_the_engine_loads_and_near_it(bench: Any, update: str) -> None:
    config = GPT2Config(n_layer=3, n_head=2, n_embd=64, block_size=64, vocab_size=200)
    parameters = Parameters(config, Tiling(config, 32))
    rows, standing = parameters.tiling.rows(4, 64), list(parameters.states())
    on_host = frozenset(standing) if update == "host" else frozenset[Any]()
    program = record("step", parameters, rows, on_host=on_host)
    cap = config.states_nbytes // 3
    loaded = simulate(program, standing, device_memory=cap).uploaded_nbytes
    least = bench("optimum").min_loads(program, measure([program], standing).divide(cap, "device_memory"))
    assert 0 < least <= loaded < 1.1 * least


def test_a_tile_leaves_most_of_the_cap_to_other_tiles(bench: Any) -> None:
    common, config = bench("gpu_rows"), GPT2Config.named("gpt2")
    tiles = [common.tile_under(rehearsal(), config, int(share * config.states_nbytes)) for share in (0.05, 0.25, 4)]
    assert tiles == sorted(tiles)
    assert tiles[0] < tiles[-1] == config.inner


def test_the_flops_of_a_model_are_those_of_its_matrix_products(bench: Any) -> None:
    config = GPT2Config.named("gpt2")
    ours, products = bench("gpu_common").model_flops(config, 1024, 1024), bench("common").step_flops(config, 1024, 1024)
    assert ours == pytest.approx(products, rel=0.01)


# A part that finds two rows and then hangs.
HANGS = """
import argparse, time
from gpu_record import Section

section = Section("depth", "Does it hold?", argparse.Namespace(device="soft", precision="bf16", write=True))
table = section.table("depth", "layers", "s")
section.add(table, 4, 1.5)
section.add(table, 48, 18.0)
section.headline("fall", 0.01)
print("hangs", flush=True)
time.sleep(60)
"""


def test_each_row_is_kept_when_its_part_is_ended(bench: Any, tmp_path: Path) -> None:
    """By SIGTERM, as timeout(1) ends it."""
    folder = bench("gpu_record").REHEARSED
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("results", "__pycache__"))
    (tmp_path / "bench" / "hangs.py").write_text(HANGS)
    command = [sys.executable, tmp_path / "bench" / "hangs.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=clean(PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [line for line in process.stdout if line == "hangs\n" and process.terminate() is None] == ["hangs\n"]
    assert process.returncode == -signal.SIGTERM
    (path,) = (tmp_path / folder.relative_to(ROOT)).glob("cuda_rehearsal_*.json")
    kept = json.loads(path.read_text())["parts"]["depth"]["tables"]
    assert [table["rows"] for table in kept] == [[[4, 1.5], [48, 18.0]], [["fall", 0.01, None]]]
    assert "| 48 | 18 |" in path.with_suffix(".md").read_text()


def test_a_section_says_which_libraries_went_with_it_and_each_once(bench: Any) -> None:
    section = bench("gpu_record").Section("link", "Is it fast?", rehearsal())
    driver = argparse.Namespace(attention="cuDNN 9.1", epilogues="cuBLASLt")
    section.went_by(driver, "bf16")
    driver.attention = "cuDNN 9.1, not for all shapes (one)"
    section.went_by(driver, "bf16")
    section.went_by(argparse.Namespace(attention="not used: no frontend", epilogues="cuBLASLt"), "bf16")
    section.went_by(driver, "tf32")
    assert section.configuration["attention"] == (
        "cuDNN 9.1, not for all shapes (one); not used: no frontend; asynctile's kernels in tf32")
    assert section.configuration["bias"] == "cuBLASLt"


def test_every_file_of_gpu_tests_runs(bench: Any) -> None:
    found = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert sorted(bench("gpu_tests").FILES) == sorted(found)


# Tests that pass, fail, are skipped, or take the process with them.
CASES = {
    "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('no GPU')": [
        ("test_a", "passed", ""), ("test_b", "failed", "call: assert 1 == 2"), ("test_c", "skipped", "Skipped: no GPU")],
    "import os\ndef test_a(): pass\ndef test_b(): os.abort()\ndef test_c(): pass": [
        ("test_a", "passed", ""), ("test_b", "failed", "its process ended with status -6")],
    "import nothing_like_it": [
        ("test_it.py", "failed", "collection: E   ModuleNotFoundError: No module named 'nothing_like_it'")],
}  # fmt: skip


@pytest.mark.parametrize("source", CASES, ids=["usual", "dies", "does not load"])
def test_what_tests_found_is_known_as_it_is_found_whatever_becomes_of_their_process(
    bench: Any, tmp_path: Path, source: str
) -> None:
    found = list(bench("gpu_tests").outcomes(command_of(tmp_path, source)))
    assert len(found) == len(CASES[source])
    for (test, how, note), (name, wanted, begins) in zip(found, CASES[source], strict=True):
        assert (test.rpartition("/")[2].rpartition("::")[2], how) == (name, wanted)
        assert note.startswith(begins)


def command_of(folder: Path, source: str) -> list[str]:
    """A command that runs them with the plugin."""
    (folder / "test_it.py").write_text(source)
    return [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, str(folder / "test_it.py"), "-p", "no:cacheprovider",
            "-p", "gpu_outcomes", "-p", "no:faulthandler"]  # fmt: skip


def test_a_process_that_says_nothing_any_more_is_ended_with_the_test_that_it_was_in(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up as soon as the second test has begun; nothing waits for it here."""
    tests = bench("gpu_tests")
    lines = tests.lines

    def until_the_second_begins(source: int, silent_s: float) -> Iterator[str]:
        for line in lines(source, silent_s):
            yield line
            if json.loads(line)[:2] == ["test_it.py::test_b", "runs"]:
                raise TimeoutError

    monkeypatch.setattr(tests, "lines", until_the_second_begins)
    found = list(tests.outcomes(command_of(tmp_path, "import time\ndef test_a(): pass\ndef test_b(): time.sleep(600)")))
    ended = ("test_it.py::test_b", "failed", "its process said nothing for 75 s")
    assert found == [("test_it.py::test_a", "passed", ""), ended]


def test_lines_end_with_their_writers_or_when_none_comes_for_long(bench: Any) -> None:
    source, target = os.pipe()
    os.write(target, b"one\ntw")
    found = bench("gpu_tests").lines(source, 0.01)
    assert next(found) == "one"
    with pytest.raises(TimeoutError):
        next(found)
    os.write(target, b"o\nthree\n")
    os.close(target)
    assert list(bench("gpu_tests").lines(source, 0.01)) == ["o", "three"]
    os.close(source)


class Side:
    """A model whose micro-batches take so many seconds a sequence, until one is out of memory, which spoils it."""

    made = 0

    def __init__(self, seconds: dict[int, float]) -> None:
        Side.made += 1
        self.seconds, self.spoilt = seconds, False

    def trial_s(self, length: int, part: int) -> float:
        assert not self.spoilt
        if part not in self.seconds:
            self.spoilt = True
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return self.seconds[part]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("seconds", "part", "full"),
    [({1: 3.0, 4: 1.0}, 4, True), ({1: 3.0, 4: 1.0, 16: 2.0}, 4, False), ({1: 3.0, 4: 2.0, 16: 1.0}, 16, False), ({}, 0, True)],
)
def test_the_fastest_micro_batch_is_found_and_the_model_is_whole(
    bench: Any, seconds: dict[int, float], part: int, full: bool
) -> None:
    torch_side, before = bench("gpu_torch"), Side.made
    place = bench("gpu_peaks").Place("soft")
    side, found, more_is_too_much = torch_side.fastest_micro_batch(lambda: Side(seconds), place, 16, 1024)
    assert (found, more_is_too_much) == (part, full)
    assert not side.spoilt
    assert Side.made == before + 1 + full


@pytest.mark.reference
@pytest.mark.timeout(600)
def test_a_rehearsal_runs_every_part_and_keeps_its_rows(tmp_path: Path) -> None:
    """From a copy of what git would give, with this interpreter, on the driver of threads."""
    files = run("git", "ls-files", "-co", "--exclude-standard").stdout.split()
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file, follow_symlinks=False)
    done = run(tmp_path / "bench" / "gpu.sh", "--rehearse", "link", "depth", cwd=tmp_path, PYTHON=sys.executable, limit_s=500)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    assert "fall of TFLOP/s from 1 to 4 layers" in done.stdout
    (path,) = (tmp_path / "runs" / "rehearsal").glob("*.json")
    parts = json.loads(path.read_text())["parts"]
    assert list(parts) == ["link", "depth"]
    assert all(part["configuration"]["attention"].startswith("cuDNN 9.0") for part in parts.values())
