"""--max-time: a call ends by itself as if it had been asked to, with status 0, and the run goes on as if it never had.

Signals are tests/cli/test_train.py's and tests/cli/test_commands.py's.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Program
from tests.cli.test_train import stop_after

ROOT = Path(__file__).resolve().parents[2]
#: What says how long something took, or where bytes were; all else of a line is part of the result.
RESULTS = ("step", "loss", "lr", "grad_norm", "tokens", "validation_loss", "validation_perplexity", "validation_tokens")


def results(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in RESULTS if name in line} for line in lines]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever a run looks at it, to see whether its time is over."""
    count = itertools.count()
    monkeypatch.setattr("asynctile.cli.interrupt.time", SimpleNamespace(monotonic=lambda: next(count)))


@pytest.mark.usefixtures("looks")
def test_a_run_in_many_short_calls_is_as_in_one(train: Program, program: Program, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train("--out", whole)[0] == 0
    status, out, err = train("--out", cut, "--max-time", "5s")
    assert (status, err) == (0, "")
    assert "--max-time is over: stopped; " in out and f"--resume --out {cut} goes on" in out
    assert "max_time" not in json.loads((cut / "run.json").read_text())["options"]
    ends = [results(cut)[-1]["step"]]
    for _ in range(20):
        status, out, err = program("train", "--resume", "--out", cut, "--max-time", "5s")
        assert (status, err) == (0, "")
        ends.append(results(cut)[-1]["step"])
        if "goes on" not in out:
            break
    assert len(ends) > 3 and sorted(ends) == ends
    assert results(cut) == results(whole)
    for name in ("model.safetensors", "optimizer.safetensors"):
        last = Path("checkpoints") / "step-000006" / name
        assert (cut / last).read_bytes() == (whole / last).read_bytes()


@pytest.mark.usefixtures("looks")
def test_time_that_is_over_before_the_first_step_is_said_and_leaves_nothing(train: Program, tmp_path: Path) -> None:
    status, out, err = train("--out", tmp_path / "run", "--max-time", "1s")
    assert (status, err) == (0, "")
    assert "--max-time is over: stopped before the first step; nothing was changed" in out
    assert not (tmp_path / "run").exists()


def test_a_signal_before_the_time_is_over_is_answered_as_ever(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 2, signal.SIGTERM)
    status, out, _ = train("--out", tmp_path / "run", "--max-time", "1h")
    assert status == 130 and "--resume" in out and "--max-time" not in out


def test_a_signal_after_the_time_is_over_asks_and_only_the_second_ends_the_process() -> None:
    """A checkpoint may be being written by then."""
    script = textwrap.dedent("""
        import asyncio, os, signal
        from asynctile.cli.interrupt import Interrupt

        async def work():
            interrupt = Interrupt(1e-9)
            assert not interrupt.requested, "before the first step there is nothing to save"
            with interrupt.listening(print):
                interrupt.begin_steps()
                assert interrupt.requested and not interrupt.asked
                interrupt.check()
                os.kill(os.getpid(), signal.SIGINT)
                assert interrupt.asked
                print("goes on", flush=True)
                os.kill(os.getpid(), signal.SIGINT)
                print("never said")

        asyncio.run(work())
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "goes on\n", "")
