"""--trace and --trace-steps: the steps that are traced, the messages, and that a run never depends on its trace."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from asynctile import Engine
from asynctile.measure import trace_file
from tests.cli.conftest import Program, after_each_step
from tests.cli.test_train import stop_after
from tests.measure.full_disk import fill_disk
from tests.measure.trace_format import problems

FAST = ("--validate-every", 100, "--validation-tokens", 128)


def traced_steps(path: Path) -> list[str]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    assert problems(events) == []
    return [event["name"] for event in events if event.get("cat") == "step"]


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


@pytest.mark.parametrize(("words", "steps"), [((), [*range(1, 7)]), (("--trace-steps", "3:4"), [3, 4]),
                                              (("--trace-steps", ":2"), [1, 2])])  # fmt: skip
def test_the_named_steps_are_traced_and_the_others_played(
    train: Program, tmp_path: Path, words: tuple[str, ...], steps: list[int]
) -> None:
    run, path = tmp_path / "run", tmp_path / "t.json"
    status, out, err = train("--out", run, "--trace", path, *words, *FAST)
    assert (status, err) == (0, "") and f"to {path}: open it in ui.perfetto.dev" in out
    assert traced_steps(path) == [f"step {step}" for step in steps]
    assert not any(line["played"] for line in metrics(run) if line["step"] in steps)
    if words == ("--trace-steps", "3:4"):
        assert [line["played"] for line in metrics(run)][-2:] == [True, True]
    assert not {"trace", "trace_steps"} & json.loads((run / "run.json").read_text())["options"].keys()


def test_a_run_that_resumes_after_the_named_steps_says_that_nothing_is_written(
    train: Program, program: Program, tmp_path: Path
) -> None:
    run, path = tmp_path / "run", tmp_path / "t.json"
    assert train("--out", run, *FAST)[0] == 0
    status, out, _ = program("train", "--resume", "--out", run, "--steps", 7, "--trace", path, "--trace-steps", "2:3")
    assert status == 0 and "the run did none of the steps of --trace-steps" in out and not path.exists()


def test_a_full_disk_ends_the_trace_with_a_sentence_and_changes_no_loss(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, run = tmp_path / "plain", tmp_path / "run"
    assert train("--out", plain, *FAST)[0] == 0

    append = trace_file.TraceFile.append

    def full_from_now_on(*args: Any) -> None:
        fill_disk(monkeypatch, 0)
        append(*args)

    monkeypatch.setattr(trace_file.TraceFile, "append", full_from_now_on)
    status, out, err = train("--out", run, "--trace", tmp_path / "t.json", *FAST)
    assert (status, err) == (0, "")
    assert "No space left on device" in out and f"--trace {tmp_path / 't.json'} ended" in out
    assert [line["loss"] for line in metrics(run)] == [line["loss"] for line in metrics(plain)]


@pytest.mark.parametrize("resumes", [False, True])
def test_a_trace_overwrites_nothing(train: Program, program: Program, tmp_path: Path, resumes: bool) -> None:
    run = tmp_path / "run"
    if resumes:
        assert train("--out", run, *FAST)[0] == 0
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    begin = (program, ("train", "--resume", "--steps", 7)) if resumes else (train, ())
    for name in ("file", "folder", "link"):
        status, out, err = begin[0](*begin[1], "--out", run, "--trace", tmp_path / name, *FAST)
        assert (status, out) == (2, "") and run.exists() == resumes
        assert err == f"asynctile train: --trace {tmp_path / name} exists already; name another file, or remove it\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_trace_that_cannot_be_written_is_refused_before_the_first_step(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_trace(engine: Engine, path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(Engine, "start_trace", start_trace)
    status, _, err = train("--out", tmp_path / "run", "--trace", tmp_path / "t.json", *FAST)
    assert status == 2 and not (tmp_path / "run").exists()
    assert err == f"asynctile train: --trace {tmp_path / 't.json'}: Read-only file system; name a place that can be written\n"


def test_a_trace_that_cannot_be_written_at_its_step_is_reported_and_the_run_goes_on(
    train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    after_each_step(monkeypatch, lambda step: folder.rmdir() if step == 1 else None)
    folder.mkdir()
    status, out, err = train("--out", tmp_path / "run", "--trace", folder / "t.json", "--trace-steps", "2:2", *FAST)
    assert (status, err) == (0, "") and "No such file or directory; the run goes on without a trace" in out


def test_a_trace_cut_off_by_a_signal_can_be_opened(train: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 3, signal.SIGINT)
    assert train("--out", tmp_path / "run", "--trace", tmp_path / "t.json", *FAST)[0] == 130
    assert traced_steps(tmp_path / "t.json")[:3] == ["step 1", "step 2", "step 3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trace", "t.json", "--trace-steps", "3:2"), "'3:2' cannot be used"),
        (("--trace", "t.json", "--trace-steps", ":"), "expected steps A:B, such as 5:8"),
        (("--trace", "t.json", "--trace-steps", "0:2"), "cannot be used"),
        (("--trace", "t.json", "--trace-steps", "7:"), "--trace-steps 7: goes beyond --steps 6"),
        (("--trace", "t.json", "--trace-steps", "2:7"), "--trace-steps 2:7 goes beyond --steps 6"),
        (("--trace-steps", "2:3"), "--trace-steps without --trace"),
    ],
)
def test_impossible_trace_steps_are_refused_with_a_sentence(
    train: Program, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    status, _, err = train("--out", tmp_path / "run", *words)
    assert (status, err.count("\n")) == (2, 1) and said in err and not (tmp_path / "run").exists()


def test_a_plan_writes_the_trace_of_a_step_that_did_not_run(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planned = ("plan", "--device", "emulated", "--device-memory", "3MiB", "--trace", path)
    status, out, err = program(*planned)
    assert status == 0 and out.startswith("verdict") and f"events of a simulated step to {path}: open it in" in err
    assert traced_steps(path) == ["step, simulated: nothing ran"]
    before = path.read_bytes()
    assert program(*planned) == (2, "", f"asynctile plan: --trace {path} exists already; name another file, or remove it\n")
    assert path.read_bytes() == before
