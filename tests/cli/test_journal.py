"""The lines that a resumed run keeps: those that its checkpoint covers, and none that it will repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asynctile.cli.journal import Journal, ResumePoint
from asynctile.errors import CheckpointError
from asynctile.storage.inside import Folder

LINES: list[dict[str, Any]] = [
    {"step": 0, "validation_loss": 5.0},
    {"step": 1, "loss": 4.0},
    {"step": 1, "loss": "nan", "skipped": True},
    {"step": 2, "loss": 3.0, "validation_loss": 2.5},  # as before validations had lines of their own
    {"step": 2, "validation_loss": "nan"},
    {"step": 2, "text": "a sample"},
    {"step": 2, "loss": "nan", "skipped": True},
    {"step": 2, "loss": "nan", "skipped": True},
    {"step": 3, "loss": 2.0},
]


@pytest.mark.parametrize(("mark", "kept"), [
    (ResumePoint(), []),
    (ResumePoint(validated=0), [0]),
    (ResumePoint(step=1, validated=0), [0, 1]),
    (ResumePoint(step=1, skipped=1, validated=0), [0, 1, 2]),
    (ResumePoint(step=2, skipped=1, validated=0), [0, 1, 2, 3]),
    (ResumePoint(step=2, skipped=2, validated=2), [0, 1, 2, 3, 4, 5, 6]),
    (ResumePoint(step=9, skipped=9, validated=9), list(range(9))),
])  # fmt: skip
def test_lines_that_will_be_repeated_are_dropped(tmp_path: Path, mark: ResumePoint, kept: list[int]) -> None:
    journal = Journal(tmp_path, "lines.jsonl")
    with Folder.open(tmp_path) as folder:
        for line in LINES:
            journal.append(folder, line)
        journal.close(folder)
        with open(journal.path, "a") as file:
            file.write('{"step": 1, "lo')  # cut by a kill
        journal.rewind(folder, mark)
        journal.append(folder, {"step": 9})
        journal.close(folder)
    assert [json.loads(line) for line in journal.path.read_text().splitlines()] == [*(LINES[n] for n in kept), {"step": 9}]


def test_a_replaced_file_is_not_written_to(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "lines.jsonl")
    with Folder.open(tmp_path) as folder:
        journal.append(folder, {"step": 1})
        journal.path.rename(tmp_path / "other")
        with pytest.raises(CheckpointError, match="was removed or replaced during the run"):
            journal.append(folder, {"step": 2})
        journal.close(folder)
