"""The examples that are programs: each does what its first lines say. Services are tested in test_services.py."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asynctile.cli import main
from tests.settle import HANG_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(name: str, tmp_path: Path, leaves: tuple[str, ...] = ()) -> str:
    """Return an example's output, run away from the checkout with warnings as errors. leaves: the files that it makes."""
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == list(leaves)
    return done.stdout


def tracked(path: Path) -> dict[str, dict[int, float]]:
    """Return the numbers that a tracker drew of a run, by name and step."""
    found: dict[str, dict[int, float]] = {}
    for line in map(json.loads, path.read_text().splitlines()[1:]):
        step = line.pop("step")
        for name, value in line.items():
            assert step not in found.setdefault(name, {}), "a step is drawn once"
            found[name][step] = value
    return found


def test_a_tracker_follows_a_users_own_loop(tmp_path: Path) -> None:
    assert printed("tracker", tmp_path, ("tracked",)) == "12 steps are in tracked/own-loop.jsonl\n"
    found = tracked(tmp_path / "tracked" / "own-loop.jsonl")
    losses = [loss for _, loss in sorted(found["train/loss"].items())]
    assert len(losses) == 12 and losses == sorted(losses, reverse=True)
    assert list(found["exit_code"].values()) == [0]


def test_a_tracker_follows_a_run_that_is_killed_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("a tracker is told of steps, validations and the end of a run; " * 100)
    (tmp_path / "shape.json").write_text('{"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 256}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    run = ["--out", "run", "--callback", "tracker:Tracker"]
    new = "--data text --model shape.json --device cpu --steps 5 --save-every 3 --keep 9"
    assert main(["train", *new.split(), *run]) == 0
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000005")  # as a kill between the step and its save
    assert main(["train", "--resume", "--steps", "7", *run]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    path = tmp_path / "tracked" / "run.jsonl"
    assert tracked(path)["train/loss"] == losses and list(losses) == [1, 2, 3, 4, 5, 6, 7]
    assert json.loads(path.read_text().splitlines()[0])["config"]["parameters"] > 1000


@pytest.mark.laws
def test_steps_under_timeouts_and_in_two_engines_have_the_bits_of_an_undisturbed_training(tmp_path: Path) -> None:
    assert re.fullmatch(
        r"[1-9]\d* timeouts, step [45] with loss 5\.\d+\ncancelled after step [4-8]\nthe weights are equal bit for bit\n",
        printed("timeouts", tmp_path),
    )


@pytest.mark.laws
def test_batches_of_a_loader_are_learned_in_its_order(tmp_path: Path) -> None:
    lines = re.findall(r"^step (\d+): loss (\d\.\d+), \d+ tokens/s$", printed("own_data", tmp_path), re.MULTILINE)
    assert [int(step) for step, _ in lines] == [*range(1, 13)]
    losses = [float(loss) for _, loss in lines]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.laws
def test_two_jobs_share_an_engine_and_a_third_is_refused(tmp_path: Path) -> None:
    lines = printed("two_jobs", tmp_path).splitlines()
    assert re.match(r"loss [45]\.\d+; answers \[b", lines[0])
    assert lines[1] == f"with both shares open, the engine keeps {1 << 20} bytes of the device"
    assert lines[2].startswith("a third share: device_memory of 1.00 MiB cannot lend a share of 2.00 MiB")
