"""--max-time, which ends a call with status 0, and signals: which one counts as a second, and how a run says that it ends.

tests/cli/test_resuming.py sends a signal at every moment of a run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynctile.cli.run_folder import RunFolder
from tests.cli.conftest import Program
from tests.cli.test_train import stop_after
from tests.laws import law
from tests.settle import HANG_S

ROOT = Path(__file__).resolve().parents[2]
#: The parts of a line that belong to the result; the others are durations and byte counts.
RESULTS = ("step", "loss", "lr", "grad_norm", "tokens", "validation_loss", "validation_perplexity", "validation_tokens")


def results(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in RESULTS if name in line} for line in lines]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock by one that advances a second whenever a run asks whether its time is over."""
    count = itertools.count()
    monkeypatch.setattr("asynctile.cli.interrupt.time", SimpleNamespace(monotonic=lambda: next(count)))


@pytest.mark.usefixtures("looks")
def test_a_run_in_many_short_calls_equals_one_call(train: Program, program: Program, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train("--out", whole)[0] == 0
    status, out, err = train("--out", cut, "--max-time", "5s")
    assert (status, err) == (0, "")
    assert "--max-time reached: stopped; " in out and f"--resume --out {cut} continues" in out
    assert "max_time" not in json.loads((cut / "run.json").read_text())["options"]
    ends = [results(cut)[-1]["step"]]
    for _ in range(20):
        status, out, err = program("train", "--resume", "--out", cut, "--max-time", "5s")
        assert (status, err) == (0, "")
        ends.append(results(cut)[-1]["step"])
        if "--resume --out" not in out:
            break
    assert len(ends) > 3 and sorted(ends) == ends
    assert results(cut) == results(whole)
    for name in ("model.safetensors", "optimizer.safetensors"):
        last = Path("checkpoints") / "step-000006" / name
        assert (cut / last).read_bytes() == (whole / last).read_bytes()


@pytest.mark.usefixtures("looks")
def test_time_that_ends_before_the_first_step_is_reported_and_leaves_nothing(train: Program, tmp_path: Path) -> None:
    status, out, err = train("--out", tmp_path / "run", "--max-time", "1s")
    assert (status, err) == (0, "")
    assert "--max-time reached: stopped before the first step; nothing was changed" in out
    assert not (tmp_path / "run").exists()


def test_a_signal_before_the_time_is_over_is_answered_as_usual(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 2, signal.SIGTERM)
    status, out, _ = train("--out", tmp_path / "run", "--max-time", "1h")
    assert status == 130 and "--resume" in out and "--max-time" not in out


#: A program with a clock that stands until it is set, and `signals`, which arrive at that time.
CLOCK = """
import os, signal, sys, time
from types import SimpleNamespace
from asynctile.cli import interrupt as module
from asynctile.cli.interrupt import Interrupt

now = [0.0]
module.time = SimpleNamespace(monotonic=lambda: now[0])
interrupt = Interrupt()
interrupt.last_words = "stopped at once; there is nothing to go on from"
interrupt.announce = print

def signals(at, *numbers):
    now[0] = at
    for number in numbers:
        os.kill(os.getpid(), number)
    print("goes on", flush=True)
"""


def ended(script: str, **how: Any) -> tuple[int, str, str]:
    """Run `CLOCK` and the script in a process; return status, stdout and stderr."""
    command = [sys.executable, "-c", CLOCK + textwrap.dedent(script)]
    done = subprocess.run(command, cwd=ROOT, stdout=how.get("stdout", subprocess.PIPE), stderr=subprocess.PIPE, text=True,
                          check=False, timeout=HANG_S)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_second_signal_ends_the_process_at_once_unless_it_comes_within_two_seconds() -> None:
    """This holds even if the loop is stuck: nobody answers the first signal, and the second must not wait."""
    found = ended("""
        async def work():
            interrupt.begin_steps()
            signals(10.0, signal.SIGINT)
            assert interrupt.requested
            signals(10.0, signal.SIGINT, signal.SIGTERM)
            signals(11.99, signal.SIGTERM, signal.SIGHUP)
            signals(13.0, signal.SIGHUP)
            signals(12.0, signal.SIGTERM)

        interrupt.run(work())
    """)
    assert found == (130, "goes on\n" * 4 + "stopped at once; there is nothing to go on from\n", "")


def test_a_signal_after_the_time_is_over_asks_and_only_the_second_ends_the_process() -> None:
    """A checkpoint may be in the middle of being written by then."""
    found = ended("""
        async def work():
            interrupt.end_after(1.0)
            now[0] = 2.0
            assert not interrupt.requested, "before the first step there is nothing to save"
            interrupt.begin_steps()
            assert interrupt.requested and not interrupt.asked
            interrupt.check()
            signals(5.0, signal.SIGINT)
            assert interrupt.asked
            signals(7.0, signal.SIGINT)

        interrupt.run(work())
    """)
    assert found == (130, "goes on\nstopped at once; there is nothing to go on from\n", "")


def test_a_signal_taken_by_another_thread_wakes_the_sleeping_loop() -> None:
    """Found on a busy machine: a signal between the loop's last look and its sleep waited for ever."""
    found = ended("""
        import asyncio, pathlib, threading

        main = pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/stat")

        def signal_once_it_sleeps():
            while main.read_text().rpartition(")")[2].split()[0] != "S":
                pass
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

        async def work():
            threading.Thread(target=signal_once_it_sleeps).start()
            await asyncio.Event().wait()

        assert interrupt.run(work()) is None and interrupt.asked
        assert signal.set_wakeup_fd(-1) == -1, "as it was"
    """)
    assert found == (0, "stopping before the first step; a second signal, at least 2 s later, stops at once\n", "")


def test_an_immediate_end_waits_for_no_reader() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(1 << 16)):
            pass
    os.set_blocking(writer, True)
    try:
        status, _, err = ended("""
            async def work():
                print = lambda *_, **__: None
                os.kill(os.getpid(), signal.SIGINT)
                now[0] = 2.0
                os.kill(os.getpid(), signal.SIGINT)

            interrupt.run(work())
        """, stdout=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert (status, err) == (130, "")


@pytest.fixture
def no_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(status: int) -> None:
        raise AssertionError("the process would have ended")

    monkeypatch.setattr(os, "_exit", never)


def pair(*_: object) -> None:
    """Send two signals at once, as `timeout -s INT` does to a process and to its group."""
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("no_end_at_once")
def test_a_pair_of_signals_before_the_loop_exists_stops_before_the_first_step(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asyncio.run

    def signalled(work: Coroutine[Any, Any, int]) -> int:
        pair()
        return run(work)

    monkeypatch.setattr(asyncio, "run", signalled)
    status, out, err = train("--out", tmp_path / "run")
    assert (status, err) == (130, "") and "stopped before the first step; nothing was changed" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_end_at_once")
def test_a_pair_of_signals_as_the_loop_ends_changes_nothing_of_a_finished_run(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "unclaim", after(RunFolder.unclaim, pair))
    status, _, err = train("--out", tmp_path / "run")
    assert (status, err) == (0, "") and (tmp_path / "run" / "summary.json").exists()


def after(method: Callable[..., Any], act: Callable[..., None]) -> Callable[..., Any]:
    """Return the method with a call of `act` after it, given the method's arguments."""

    @wraps(method)
    def called(*given: Any) -> Any:
        found = method(*given)
        act(*given)
        return found

    return called


#: A training that a later signal ends at once after a step, while nothing is being saved.
STOPPED = """
import os, signal, sys, time
from types import SimpleNamespace
from asynctile.cli import interrupt, main
from asynctile.cli.session import Session

step, now = Session._step, [0.0]
interrupt.time = SimpleNamespace(monotonic=lambda: now[0])

async def stopped(session):
    await step(session)
    await session.trainer.saved()
    if session.trainer.step_count == int(sys.argv[1]):
        for now[0] in (1.0, 3.0):
            os.kill(os.getpid(), signal.SIGTERM)

Session._step = stopped
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("step", "says"), [
    law(1, "{run} has no checkpoint and starts at step 1"),
    (3, "{run} continues from {run}/checkpoints/step-000002, step 2"),
])  # fmt: skip
def test_a_run_that_ends_at_once_and_its_resume_name_the_checkpoint_to_resume_from(
    program: Program, text: Path, shape: Path, tmp_path: Path, step: int, says: str
) -> None:
    run = tmp_path / "run"
    says = says.format(run=run)
    words = ["train", "--data", text, "--model", shape, "--device", "cpu", "--batch-size", 4, "--steps", 6, "--out", run,
             "--save-every", 2, "--validate-every", 6]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", STOPPED, f"{step}", *map(str, words)], cwd=ROOT, capture_output=True,
                          text=True, check=False, timeout=HANG_S)  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.splitlines()[-1] == f"asynctile train: stopped at once; with --resume, {says}"
    status, out, err = program("train", "--resume", "--out", run)
    assert (status, err) == (0, "") and says in out.splitlines()
