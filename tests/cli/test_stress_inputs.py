"""Scenario `inputs` on its own side of a case: the state it looks at, and its judgment.

test_stress_planted.py checks that it finds planted bugs.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from asynctile.cli.stress.finding import Finding
from asynctile.cli.stress.inputs.bystanders import changes, survey
from asynctile.cli.stress.inputs.damage import Damage
from asynctile.cli.stress.inputs.prey import ORDERS
from asynctile.cli.stress.inputs.standing import RunStanding
from asynctile.cli.stress.inputs.surroundings import Conditions
from asynctile.cli.stress.inputs.trial import End
from asynctile.cli.stress.inputs.verdict import judge


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    (tmp_path / "run.json").write_text("{}\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n')
    return tmp_path


def test_the_standing_of_a_run_is_what_its_files_say(run: Path) -> None:
    stood = RunStanding.of(run)
    os.rename(run / "run.json", run / "other")
    (run / "run.json").write_text("{}\n")
    (run / "checkpoints" / ".step-000002.ab.new").mkdir()
    assert RunStanding.of(run) == stood
    (run / "run.json").write_text("[]\n")
    assert RunStanding.of(run) != stood
    (run / "run.json").write_text("{}\n")
    (run / "metrics.jsonl").write_text('{"step": 3}\n')
    assert RunStanding.of(run) != stood
    (run / "metrics.jsonl").write_text('{"step": 2}\n')
    (run / "checkpoints" / "step-000004").mkdir()
    assert RunStanding.of(run) != stood


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_the_bytes_of_an_enormous_file_are_not_read(run: Path, name: str) -> None:
    """A tebibyte is more than the process has: reading it would end the process, and the scenario with it."""
    os.truncate(run / name, 1 << 40)
    stood = RunStanding.of(run)
    assert RunStanding.of(run) == stood
    os.truncate(run / name, 1 << 39)
    assert RunStanding.of(run) != stood


def test_only_regular_files_are_opened(run: Path, tmp_path: Path) -> None:
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/zero")
    (run / "checkpoints" / "step-000002").rmdir()
    (run / "checkpoints").rmdir()
    (run / "checkpoints").symlink_to("checkpoints")
    stood = RunStanding.of(run)
    assert RunStanding.of(run) == stood
    (run / "run.json").unlink()
    assert RunStanding.of(run) != stood
    assert RunStanding.of(run / "nothing") == RunStanding(None, None, None)


BEFORE = RunStanding(b"{}", b"1\n2\n", ["step-000002", "step-000004"])


@pytest.mark.parametrize("now", [
    replace(BEFORE, metrics=b"1\n2\n3\n"),
    replace(BEFORE, metrics=b"1\n2\n3\n", record=b'{"steps": 9}', checkpoints=["step-000004", "step-000006"]),
    replace(BEFORE, metrics=b"1\n2\n3\n", checkpoints=["step-000006"]),
])  # fmt: skip
def test_only_a_refusal_of_whole_files_may_come_after_steps(now: RunStanding) -> None:
    """A full disk ends a run at any step; damage is found before the first step."""
    BEFORE.expect(now, whole=True)
    with pytest.raises(Finding, match=r"refused, but changed the run's .*metrics"):
        BEFORE.expect(now, whole=False)


@pytest.mark.parametrize("now", [
    replace(BEFORE, record=b'{"steps": 9}'),
    replace(BEFORE, checkpoints=["step-000002"]),
    replace(BEFORE, checkpoints=["step-000002", "step-000004", "step-000006"]),
    replace(BEFORE, metrics=b"1\n"),
    replace(BEFORE, metrics=b"1\n3\n4\n"),
    replace(BEFORE, metrics=(1, 2, 3)),
    replace(BEFORE, metrics=b"1\n2\n3\n", record=b'{"ste'),
    replace(BEFORE, metrics=b"1\n2\n3\n", record=None),
    replace(BEFORE, metrics=b"1\n2\n3\n", checkpoints=["step-000002"]),
    replace(BEFORE, metrics=b"1\n2\n3\n", checkpoints=["step-000003", "step-000004"]),
    replace(BEFORE, metrics=b"1\n2\n3\n", checkpoints=None),
])  # fmt: skip
def test_without_a_step_nothing_changes_and_with_one_nothing_is_lost(now: RunStanding) -> None:
    with pytest.raises(Finding, match="refused, but changed the run's"):
        BEFORE.expect(now, whole=True)
    BEFORE.expect(BEFORE, whole=False)


def test_a_bystander_may_lose_a_name_elsewhere_and_nothing_else(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    (here / "file").write_text("whole")
    os.link(here / "file", other)
    before = survey(here)
    other.unlink()  # as a process that replaces it does
    assert changes(before, survey(here)) == []
    os.link(here / "file", other)
    before = survey(here)
    other.write_text("whole")
    assert changes(before, survey(here)) == ["file was changed"]
    before = survey(here)
    other.chmod(0o600)
    other.unlink()
    assert changes(before, survey(here)) == ["file was changed"]
    before = survey(tmp_path, but=here / "new")
    (here / "new").mkdir()
    assert changes(before, survey(tmp_path, but=here / "new")) == []
    here.chmod(0o711)
    assert changes(before, survey(tmp_path, but=here / "new")) == ["here was changed"]


def test_only_the_signal_that_was_sent_may_end_a_command() -> None:
    order, damage = ORDERS["process"][-1], Damage("signal", "process")
    end = End(status=-signal.SIGHUP, out=b"", err=b"", seconds=0.1, nbytes=0)
    judge(end, order, damage, [], (), Conditions(signals=((0.1, signal.SIGHUP),)))
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(Finding, match="status -1"):
            judge(end, order, damage, [], (), Conditions(signals=((0.1, number),)))
    with pytest.raises(Finding, match="status -2"):
        judge(replace(end, status=-signal.SIGINT), order, damage, [], (), Conditions(signals=((0.1, signal.SIGINT),)))
