"""What scenario `inputs` does on its own side of a case: what it looks at, and how it judges.

That it finds what is broken is test_stress_planted.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asynctile.cli.stress.inputs.attacker import standing


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    (tmp_path / "run.json").write_text("{}\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n')
    return tmp_path


def test_what_stands_of_a_run_is_what_it_says(run: Path) -> None:
    stood = standing(run)
    os.rename(run / "run.json", run / "other")
    (run / "run.json").write_text("{}\n")
    (run / "checkpoints" / ".step-000002.ab.new").mkdir()
    assert standing(run) == stood
    (run / "run.json").write_text("[]\n")
    assert standing(run) != stood
    (run / "run.json").write_text("{}\n")
    (run / "metrics.jsonl").write_text('{"step": 3}\n')
    assert standing(run) != stood
    (run / "metrics.jsonl").write_text('{"step": 2}\n')
    (run / "checkpoints" / "step-000004").mkdir()
    assert standing(run) != stood


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_of_a_file_without_end_the_bytes_are_not_looked_at(run: Path, name: str) -> None:
    """A tebibyte is more than the process has: it would end there, and the scenario with it."""
    os.truncate(run / name, 1 << 40)
    stood = standing(run)
    assert standing(run) == stood
    os.truncate(run / name, 1 << 39)
    assert standing(run) != stood


def test_nothing_is_opened_that_is_no_file(run: Path, tmp_path: Path) -> None:
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/zero")
    (run / "checkpoints" / "step-000002").rmdir()
    (run / "checkpoints").rmdir()
    (run / "checkpoints").symlink_to("checkpoints")
    stood = standing(run)
    assert standing(run) == stood
    (run / "run.json").unlink()
    assert standing(run) != stood
    assert standing(run / "nothing") == (None, None, None)
