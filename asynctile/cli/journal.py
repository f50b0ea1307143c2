"""A file of a run with lines of JSON, written one by one as things happen: metrics.jsonl, samples.jsonl.

Covers `Journal`, and which lines a run that goes on keeps. What the lines of metrics say is asynctile/layers/report.py and
evaluation.py there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asynctile.errors import CheckpointError
from asynctile.layers.report import read_metrics
from asynctile.storage.inside import Folder, write_whole

__all__ = ["Journal", "ResumePoint"]


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where a run goes on: behind `step`, after so many steps were `skipped`. validated: the newest step whose model was
    validated, -1: none was.
    """

    step: int = 0
    skipped: int = 0
    validated: int = -1


class Journal:
    """The file `name` of the run in `place`. What it says of steps is in `lines`."""

    def __init__(self, place: Path, name: str) -> None:
        self.path = place / name
        self._name = name
        #: a descriptor
        self._fd: int | None = None

    def append(self, folder: Folder, line: Mapping[str, Any]) -> None:
        """Add a line, in one write: whoever reads along sees whole lines. CheckpointError if the file is another now."""
        if self._fd is None:
            self._fd = folder.append_file(self._name)
        found = folder.stat(self._name)
        if found is None or not os.path.samestat(found, os.fstat(self._fd)):
            raise CheckpointError(f"{self.path} was removed or replaced while the run was on; --resume goes on from its newest "
                                  "checkpoint")
        with folder.naming(self._name):
            write_whole(self._fd, (json.dumps(line) + "\n").encode())

    def lines(self) -> Iterator[dict[str, Any]]:
        """As `read_metrics` takes them; none if there is no file."""
        if self.path.exists():
            yield from read_metrics(self.path)

    def rewind(self, folder: Folder, mark: ResumePoint) -> None:
        """Drop the lines of what is done again from `mark` on, and what a kill has cut off."""
        if self.path.exists():
            folder.write(self._name, "".join(json.dumps(line) + "\n" for line in self._before(mark)).encode())

    def _before(self, mark: ResumePoint) -> Iterator[dict[str, Any]]:
        skipped = 0
        for line in self.lines():
            if ("loss" not in line and "validation_loss" in line) or "text" in line:
                kept = line["step"] <= mark.validated
            elif line.get("skipped") is True:
                # Its step is that of the model, which it has not changed.
                skipped += 1
                kept = line["step"] <= mark.step and skipped <= mark.skipped
            else:
                kept = line["step"] <= mark.step
            if kept:
                yield line

    def close(self, folder: Folder) -> None:
        if self._fd is not None:
            with folder.naming(self._name):
                os.close(self._fd)
            self._fd = None
