"""How tests/gpu is run: each finding is kept as soon as it is made, whatever becomes of the process."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.shell import ROOT, clean


def test_every_file_of_gpu_tests_runs(bench: Any) -> None:
    found = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert sorted(bench("gpu_tests").FILES) == sorted(found)


def test_equal_bits_run_last_and_only_four_replayed_steps_unless_some_are_chosen(bench: Any) -> None:
    tests = bench("gpu_tests")
    assert tests.FILES[:4] == ("adamw", "kernels", "attention", "memory") and tests.FILES[-1] == "equal_bits"
    few, chosen = (tests.command(argparse.Namespace(device="cuda:0", choose=choose), "replay") for choose in ("", "replay"))
    named = [word for word in few if word.startswith("tests/gpu/test_replay.py::")]
    assert len(named) == 4 and "tests/gpu/test_replay.py" in chosen
    assert not any("::" in word for word in chosen)
    plain = [word for word in few if word != "gpu_outcomes"][:-1]
    listed = subprocess.run([*plain, "--collect-only"], cwd=ROOT, capture_output=True, text=True, check=False, env=clean())
    assert [name for name in named if name.removeprefix("tests/gpu/") not in listed.stdout] == []


# Tests that pass, fail, are skipped, or crash their process.
CASES = {
    "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('no GPU')": [
        ("test_a", "passed", ""), ("test_b", "failed", "call: assert 1 == 2"), ("test_c", "skipped", "Skipped: no GPU")],
    "import os\ndef test_a(): pass\ndef test_b(): os.abort()\ndef test_c(): pass": [
        ("test_a", "passed", ""), ("test_b", "failed", "its process ended with status -6")],
    "import nothing_like_it": [
        ("test_it.py", "failed", "collection: E   ModuleNotFoundError: No module named 'nothing_like_it'")],
}  # fmt: skip


@pytest.mark.parametrize("source", CASES, ids=["usual", "dies", "does not load"])
def test_outcomes_are_known_at_once_whatever_becomes_of_their_process(
    bench: Any, tmp_path: Path, source: str
) -> None:
    found = list(bench("gpu_tests").outcomes(command_of(tmp_path, source)))
    assert len(found) == len(CASES[source])
    for (test, how, note), (name, wanted, begins) in zip(found, CASES[source], strict=True):
        assert (test.rpartition("/")[2].rpartition("::")[2], how) == (name, wanted)
        assert note.startswith(begins)


def command_of(folder: Path, source: str) -> list[str]:
    """Return a command that runs these tests with the plugin."""
    (folder / "test_it.py").write_text(source)
    return [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, str(folder / "test_it.py"), "-p", "no:cacheprovider",
            "-p", "gpu_outcomes", "-p", "no:faulthandler"]  # fmt: skip


def test_a_process_that_falls_silent_is_ended_and_its_running_test_is_named(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up as soon as the second test has begun, so nothing waits for it here."""
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


def test_lines_end_with_their_writers_or_after_a_long_silence(bench: Any) -> None:
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
