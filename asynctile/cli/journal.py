"""A run's file of JSON lines, written one by one as things happen: metrics.jsonl, samples.jsonl.

Covers `Journal`, and which lines a resumed run keeps. asynctile/layers/report.py and evaluation.py define the lines of metrics.
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
    """The point where a run resumes: after `step`, when `skipped` steps had been skipped.

    validated: the newest step whose model was validated, -1: none was.
    """

    step: int = 0
    skipped: int = 0
    validated: int = -1


class Journal:
    """The file `name` of the run in `place`, read through `lines`."""

    def __init__(self, place: Path, name: str) -> None:
        self.path = place / name
        self._name = name
        #: an open file descriptor
        self._fd: int | None = None

    def append(self, folder: Folder, line: Mapping[str, Any]) -> None:
        """Append a line in one write, so that a concurrent reader sees whole lines. CheckpointError if the file was replaced.
        """
        if self._fd is None:
            self._fd = folder.append_file(self._name)
        found = folder.stat(self._name)
        if found is None or not os.path.samestat(found, os.fstat(self._fd)):
            raise CheckpointError(f"{self.path} was removed or replaced during the run; --resume continues from the newest "
                                  "checkpoint")
        with folder.naming(self._name):
            write_whole(self._fd, (json.dumps(line) + "\n").encode())

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that `read_metrics` accepts; none if there is no file."""
        if self.path.exists():
            yield from read_metrics(self.path)

    def rewind(self, folder: Folder, mark: ResumePoint) -> None:
        """Drop the lines of work that is repeated from `mark` on, and a line that a kill cut off."""
        if self.path.exists():
            folder.write(self._name, "".join(json.dumps(line) + "\n" for line in self._before(mark)).encode())

    def _before(self, mark: ResumePoint) -> Iterator[dict[str, Any]]:
        skipped = 0
        for line in self.lines():
            if ("loss" not in line and "validation_loss" in line) or "text" in line:
                kept = line["step"] <= mark.validated
            elif line.get("skipped") is True:
                # The step of a skipped line is the model's, which it has not changed.
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
