"""Output to a terminal: escaped, cut, and lost without harm. Runs whose reader leaves, or that never had one."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile.cli.corpus import prepare_tokenizer
from asynctile.cli.display import PlainDisplay, open_display
from asynctile.cli.run_folder import RunFolder
from asynctile.cli.terminal import Output, complain, console_on, one_line, printable, say
from tests.cli.conftest import Program, after_each_step
from tests.settle import HANG_S, turns

ROOT = Path(__file__).resolve().parents[2]
EVIL = "\x1b]0;owned\x07\x9b31m\u202e\ud800"


@pytest.mark.parametrize("character", [*map(chr, range(32)), "\x7f", "\x85", "\x9b", "\u202e", "\u2066", "\u2028", "\ud800"])
def test_a_character_that_a_terminal_obeys_does_not_reach_it(character: str) -> None:
    assert character in "\t\n" or character not in printable(f"a{character}b")
    line = one_line(ValueError(f"a{character}b"))
    assert character not in line and line.startswith("a") and line.endswith("b")


def test_ordinary_text_stays_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    text = "tab\tžluť 日本 👩\u200d🚀 \xa0"
    assert printable(text) == text
    say(text)
    assert capsys.readouterr().out == text


def test_an_endless_sentence_keeps_its_beginning_and_its_advice() -> None:
    line = one_line(ValueError("config.json has " + "9" * 10**6 + "; do something else"))
    assert len(line) < 1500 and line.startswith("config.json has 9") and line.endswith("; do something else")


@pytest.mark.parametrize(
    ("number", "why", "said"),
    [
        (errno.EROFS, None, "Read-only file system; name a place that can be written"),
        (errno.EFBIG, None, "File too large; raise the limit on the size of a file (ulimit -f)"),
        (errno.EACCES, "this is not writable; change its mode", "this is not writable; change its mode"),
        (errno.ENOENT, None, "No such file or directory"),
    ],
)
def test_an_error_of_the_system_has_a_way_out_unless_its_sentence_has_one(number: int, why: str | None, said: str) -> None:
    assert one_line(OSError(number, why or os.strerror(number), "file")) == f"file: {said}"


def test_names_and_warnings_are_escaped(program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a\x1b[31m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"activation_function": EVIL}))
    for words in (["generate", folder, "--prompt", "a"], ["train", "--model", folder, "--out", tmp_path / "run"],
                  ["train", "--model", folder / "config.json", "--out", tmp_path / "run"], ["plan", "--device", EVIL[:-1]]):
        status, _, err = program(*words)
        assert (status, err.count("\n")) == (2, 1) and "\\x1b" in err
        assert err[:-1].isprintable()
    complain(EVIL)
    assert capsys.readouterr().err[:-1].isprintable()


class Broken(io.StringIO):
    def flush(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "environment", "moves"), [
    (Terminal, {}, True), (Terminal, {"FORCE_COLOR": "1"}, True), (io.StringIO, {}, False),
    (io.StringIO, {"FORCE_COLOR": "1"}, False), (Terminal, {"FORCE_COLOR": "1", "JPY_PARENT_PID": "7"}, False),
    (Terminal, {"TERM": "dumb"}, False),
])  # fmt: skip
def test_the_cursor_moves_only_on_a_terminal_that_shows_it(
    stream: type[io.StringIO], environment: dict[str, str], moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "FORCE_COLOR", "JPY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = stream()
    with open_display(console_on(out)) as display:
        display.progress("saving", 1, 2)
        display.note("a note")
    assert ("\x1b" in out.getvalue()) == moves and "a note" in out.getvalue()


def test_a_lost_output_is_reported_once_and_drops_the_rest() -> None:
    lost: list[OSError] = []
    output = Output(Broken(), lost.append)
    for _ in range(3):
        output.write("a")
        output.flush()
    assert [error.errno for error in lost] == [errno.EPIPE]
    assert not output.isatty()


def broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(("become", "status", "says"), [
    (broken_pipe, 130, "the reader of stdout is gone"), (full_disk, 2, "stdout: No space left on device"),
])  # fmt: skip
def test_a_run_whose_output_is_lost_finishes_its_step_saves_and_says_so(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, become: Callable[[], int], status: int,
    says: str,
) -> None:
    run, show, steps = tmp_path / "run", PlainDisplay.step, []
    with monkeypatch.context() as patch, open(tmp_path / "out", "w", encoding="utf-8") as stdout:
        def shown(self: PlainDisplay, report: Any) -> None:
            show(self, report)
            steps.append(report.step)
            if report.step == 2:
                os.dup2(lost := become(), stdout.fileno())
                os.close(lost)
                self.note("into nothing")

        patch.setattr(PlainDisplay, "step", shown)
        patch.setattr(sys, "stdout", stdout)
        found, _, err = train("--out", run)
    newest = run / "checkpoints" / f"step-{steps[-1]:06d}"
    assert found == status and steps[-1] < 6
    assert err == f"asynctile train: {says}: stopped; {newest} is saved; --resume --out {run} continues\n"
    assert newest.is_dir()
    assert program("train", "--resume", "--out", run)[0] == 0


def test_a_stopped_run_waits_for_its_writer_before_it_removes_the_folder(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discard, note, written = RunFolder.discard_unless_begun, PlainDisplay.note, []
    cancelled: Future[asyncio.AbstractEventLoop] = Future()

    def slowly(options: Any, folder: RunFolder) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.run_coroutine_threadsafe(turns(), cancelled.result(20)).result(20)  # the folder would go during these
        written.append(folder)
        return prepare_tokenizer(options, folder)

    def noted(self: PlainDisplay, text: str) -> None:
        note(self, text)
        if text.startswith("stopping"):  # the work is cancelled in the same turn of the loop
            cancelled.set_result(asyncio.get_running_loop())

    def discarding(self: RunFolder) -> None:
        assert written, "a thread is still to write"
        discard(self)

    monkeypatch.setattr("asynctile.cli.train.prepare_tokenizer", slowly)
    monkeypatch.setattr(PlainDisplay, "note", noted)
    monkeypatch.setattr(RunFolder, "discard_unless_begun", discarding)
    status, out, _ = train("--out", tmp_path / "run")
    assert status == 130 and "nothing was changed" in out
    assert not (tmp_path / "run").exists()


def hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(step: int) -> None:
        """Send more than one signal, as a terminal and its shell do."""
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)

    after_each_step(monkeypatch, twice)


def test_a_terminal_that_hangs_up_stops_a_run_with_a_checkpoint(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang_up(monkeypatch)
    status, out, err = train("--out", tmp_path / "run")
    assert (status, err) == (130, "") and "is saved" in out
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


def test_under_nohup_a_run_goes_on_after_a_hang_up(train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hang_up(monkeypatch)
        assert train("--out", tmp_path / "run")[0] == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("gone", ["run", "run/metrics.jsonl"])
def test_a_run_whose_folder_is_removed_ends_with_its_next_step(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    steps: list[int] = []

    def remove(step: int) -> None:
        steps.append(step)
        if step == 1:
            (tmp_path / gone).rename(tmp_path / "moved")

    after_each_step(monkeypatch, remove)
    status, _, err = train("--out", tmp_path / "run")
    assert (status, err.count("\n"), steps) == (2, 1, [1])
    assert str(tmp_path / gone) in err and "removed" in err
    assert not (tmp_path / gone).exists()


def test_a_model_damaged_from_the_start_saves_nothing_and_does_not_blame_the_rate(
    train: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("asynctile.layers.model.initial_piece", lambda parameter, index, seed: np.full(
            tuple(part.stop - part.start for part in index), np.nan, np.float32))
        status, _, err = train("--out", tmp_path / "run", "--save-every", 1, "--steps", 40)
    assert (status, err.count("\n")) == (2, 1) and "another --model" in err and "--lr" not in err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_program_can_start_without_standard_streams(tmp_path: Path) -> None:
    """The files that it opens do not become its stdout."""
    script = f"from asynctile.cli import main; file = open({str(tmp_path / 'status')!r}, 'w'); print(main(['info']), file=file)"
    command = f"exec '{sys.executable}' -c \"{script}\" <&- >&- 2>&-"
    subprocess.run(["bash", "-c", command], cwd=ROOT, check=True, timeout=HANG_S)
    assert (tmp_path / "status").read_text() == "0\n"
