"""Event files as TensorBoard reads them: the numbers of metrics.jsonl, each step once, whatever interrupted the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile.cli.tensorboard import points
from tests.cli.conftest import Program
from tests.settle import HANG_S

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

#: Kills the run after a step, as a machine that goes down would.
KILLING = """
import os, signal
from asynctile.callbacks import Callback

class Killing(Callback):
    def step(self, report):
        if report.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def read(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return every number by tag."""
    reader = accumulators.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the same numbers from metrics.jsonl; event files hold float32."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        for tag, value in points(json.loads(line)):
            found.setdefault(tag, []).append((json.loads(line)["step"], float(np.float32(value))))
    return found


def assert_equal(run: Path, steps: list[int]) -> None:
    found = read(run)
    assert found == expected(run)
    assert [step for step, _ in found["train/loss"]] == steps


def test_a_run_that_was_killed_and_resumed_has_each_step_once(
    program: Program, text: Path, shape: Path, tmp_path: Path
) -> None:
    (tmp_path / "killing.py").write_text(KILLING)
    words = ["train", "--data", text, "--model", shape, "--device", "cpu", "--batch-size", "4", "--steps", "8",
             "--save-every", "3", "--out", "run", "--tensorboard", "--callback", "killing:Killing"]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "asynctile", *map(str, words)], cwd=tmp_path, capture_output=True,
                          timeout=HANG_S, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    run = tmp_path / "run"
    lost = read(run)["train/loss"]
    assert [step for step, _ in lost] == [1, 2, 3, 4], "TensorBoard is told behind the callback that killed the run"
    assert program("train", "--resume", "--out", run)[0] == 0
    assert_equal(run, [1, 2, 3, 4, 5, 6, 7, 8])
    assert read(run)["train/loss"][:4] == lost
    *emptied, full = sorted((run / "tensorboard").iterdir())
    assert full.stat().st_size and sum(path.stat().st_size for path in emptied) == 0


def test_an_open_reader_forgets_steps_that_a_resumed_run_repeats(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 4, "--tensorboard")[0] == 0
    reader = accumulators.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    assert program("train", "--resume", "--out", run, "--steps", 6)[0] == 0, "the run remembers --tensorboard"
    reader.Reload()
    assert [event.step for event in reader.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert_equal(run, [1, 2, 3, 4, 5, 6])
    assert program("train", "--resume", "--out", run, "--steps", 7)[0] == 0
    assert_equal(run, [1, 2, 3, 4, 5, 6, 7])
    assert len(list((run / "tensorboard").iterdir())) == 2, "the one before is empty, those before that are gone"


def test_a_session_that_first_turns_events_on_has_the_steps_of_all_before(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 3)[0] == 0
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "notes.txt").write_text("mine")
    assert program("train", "--resume", "--out", run, "--steps", 5, "--tensorboard")[0] == 0
    assert (run / "tensorboard" / "notes.txt").read_text() == "mine"
    assert_equal(run, [1, 2, 3, 4, 5])


def test_a_link_is_not_followed(train: Program, program: Program, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    assert train("--out", run, "--steps", 3)[0] == 0
    elsewhere.mkdir()
    (run / "tensorboard").symlink_to(elsewhere)
    status, _, err = program("train", "--resume", "--out", run, "--steps", 5, "--tensorboard")
    assert status == 2 and "tensorboard" in err and err.count("\n") == 1
    assert list(elsewhere.iterdir()) == []


def test_without_the_package_the_extra_is_named(train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "asynctile.cli.tensorboard")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    status, _, err = train("--out", tmp_path / "run", "--tensorboard")
    assert status == 2 and "pip install 'asynctile[tensorboard]'" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("line", "found"), [
    ({"step": 3, "loss": 2.5, "played": True, "skipped": False}, {"train/loss": 2.5}),
    ({"step": 3, "loss": "nan", "lr": 0.1}, {"train/lr": 0.1}),
    ({"step": 3, "loss": 2.5, "skipped": True}, {}),
    ({"step": 3, "host_peak_bytes": 7, "uploaded_bytes": 8, "foreign": 9},
     {"memory/host_peak_bytes": 7, "traffic/uploaded_bytes": 8}),
    ({"step": 3, "validation_loss": 2.5, "validation_bits_per_byte": None}, {"validation/loss": 2.5}),
])  # fmt: skip
def test_a_line_has_a_point_for_each_number_that_can_be_drawn(line: dict[str, Any], found: dict[str, float]) -> None:
    assert dict(points(line)) == found


def test_events_may_be_requested_after_a_run_has_finished(train: Program, program: Program, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 2)[0] == 0
    assert program("train", "--resume", "--out", run, "--tensorboard")[0] == 0
    assert_equal(run, [1, 2])
