"""A run stopped at any moment, as often as there are moments, has the outcome of a run that was never stopped.

The moments are in moments.py. Here a run stops early for lack of gain, its best model is not the last, and it has checkpoints
on the way. Runs older than separate lines for validations are resumed too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Program
from tests.cli.moments import outcome, watch
from tests.test_house import ROOT

#: Losses fall and then rise: the best is step 2, and the run ends after 4 of 6 steps. Checkpoints are 3 and 4.
OPTIONS = ("--lr", 1, "--warmup", 6, "--validate-every", 2, "--stop-after", 1, "--validation-tokens", 256, "--sample-tokens", 2,
           "--save-every", 3, "--device", "cpu", "--batch-size", 4, "--steps", 6)


@pytest.fixture
def words(text: Path, shape: Path) -> list[str]:
    return [str(word) for word in ("--data", text, "--model", shape, *OPTIONS)]


@pytest.fixture
def whole(program: Program, words: list[str], tmp_path: Path) -> dict[str, Any]:
    """The outcome of a run that nobody stops."""
    assert program("train", "--out", tmp_path / "whole", *words)[0] == 0
    found = outcome(tmp_path / "whole")
    assert [found["summary"][name] for name in ("steps", "best_step")] == [4, 2]
    return found


def test_stopped_by_a_pair_of_signals_at_every_moment(
    program: Program, words: list[str], whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen, stopped = tmp_path / "run", [], [False]

    def reached(moment: str) -> None:
        if moment not in seen and not stopped[0] and not moment.startswith("before the line"):  # the same as after it
            seen.append(moment)
            stopped[0] = True
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    def ended(_: int) -> None:
        raise AssertionError(f"the second of two signals would have ended the process, {seen[-1]}")

    monkeypatch.setattr(os, "_exit", ended)
    watch(monkeypatch.setattr, reached)
    status = 130
    while status == 130:
        stopped[0] = False
        status = program("train", "--out", run, *(["--resume"] if run.exists() else words))[0]
    assert status == 0 and {f"behind the line of step {step}" for step in range(1, 5)} <= {*seen}
    assert {"behind validating 2", "behind validating 4", "behind the line of validation 4"} <= {*seen}
    assert outcome(run) == whole


@pytest.mark.laws
def test_killed_at_every_moment(words: list[str], whole: dict[str, Any], tmp_path: Path) -> None:
    program_of_kills = [sys.executable, "-m", "tests.cli.moments", str(tmp_path), *words]
    done = subprocess.run(program_of_kills, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert {f"before the line of step {step}" for step in range(1, 5)} <= {*seen}
    assert {"behind validating 2", "behind the rename to best at 2", "before the rename to step-000004 at 4"} <= {*seen}
    assert outcome(tmp_path / "run") == whole


def test_a_signal_with_a_validation_left_to_do_says_what_is_saved(
    program: Program, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, at = tmp_path / "run", ["behind the line of step 2"]
    watch(monkeypatch.setattr, lambda moment: os.kill(os.getpid(), signal.SIGINT) if moment == at[0] else None)
    assert program("train", "--out", run, *words)[0] == 130
    at[0] = "behind the line of validation 2"
    status, out, _ = program("train", "--resume", "--out", run)
    assert status == 130 and "nothing was changed" not in out
    assert f"stopped; {run}/checkpoints/step-000002 is saved; --resume" in out


def as_before(run: Path) -> None:
    """Turn a run into one older than lines, state and windows of validations; edits its files by hand."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
    for line in lines:
        if "loss" in line and line["step"] in losses:
            line["validation_loss"] = losses[line["step"]]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines if "loss" in line))
    record = json.loads((run / "run.json").read_text())
    names = ("validation_data", "validation_share", "validation_tokens", "validate_every", "stop_after", "sample_tokens")
    record["options"] = {name: value for name, value in record["options"].items() if name not in names}
    (run / "run.json").write_text(json.dumps(record))
    for checkpoint in (run / "checkpoints").glob("step-*"):
        state = json.loads((checkpoint / "trainer.json").read_text())
        del state["data_state"]["validations"]
        (checkpoint / "trainer.json").write_text(json.dumps(state))
        (checkpoint / "checksums.json").unlink()
    shutil.rmtree(run / "checkpoints" / "best")


def test_a_run_older_than_lines_of_validations_resumes_and_is_summed_up(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 4)[0] == 0
    as_before(run)
    metrics = (run / "metrics.jsonl").read_text()
    status, out, err = program("train", "--resume", "--out", run)
    assert (status, err) == (0, "") and "no step is left after step 4; continue with a larger --steps" in out
    assert "validation loss" in out
    assert (run / "metrics.jsonl").read_text() == metrics, "what it has is not validated again"
    status, out, err = program("train", "--resume", "--out", run, "--steps", 6)
    assert (status, err) == (0, "")
    assert (run / "metrics.jsonl").read_text().startswith(metrics)
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][4:]
    assert [(line["step"], "validation_loss" in line) for line in found] == [(5, False), (5, True), (6, False), (6, True)]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 6 and summary["tokens"] == 6 * 4 * 32 and summary["best_step"] == 6
    assert (run / "checkpoints" / "best").is_dir()


def test_a_best_loss_older_than_kept_best_models_claims_no_model(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train("--out", run, "--steps", 4)[0] == 0
    as_before(run)
    *lines, last = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(json.loads(last) | {"validation_loss": 0.5}), ""]))
    status, out, err = program("train", "--resume", "--out", run, "--steps", 6)
    assert (status, err) == (0, "") and (run / "checkpoints" / "best").is_dir()
    assert "the best loss was 0.5000, at step 4" in out and "checkpoints/best" not in out
