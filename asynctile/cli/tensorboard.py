"""TensorBoard event files of a run, in RUN/tensorboard, where TensorBoard finds them below any folder.

Covers `TensorBoard`. TensorBoard's own package writes records and checksums. The files follow from metrics.jsonl: each session
rewrites them from its lines. So a run that was killed and resumed has every step exactly once, even if only a later session
asked for TensorBoard. Skipped steps changed nothing and have no point.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from asynctile.callbacks import Callback, Run
from asynctile.layers.evaluation import Evaluation
from asynctile.layers.report import StepReport, number_in, read_metrics
from asynctile.storage.inside import Folder

__all__ = ["FOLDER", "TensorBoard", "points"]

FOLDER = "tensorboard"
_METRICS = "metrics.jsonl"
#: How TensorBoard recognizes its files, and how asynctile recognizes its own.
_NAME, _OURS = "events.out.tfevents.", ".asynctile"
#: The version of the format, in the first record.
_VERSION = "brain.Event:2"
#: The heading of each number of a step. Numbers of bytes get theirs from their names.
_HEADINGS = {
    "loss": "train", "lr": "train", "grad_norm": "train", "tokens": "speed", "tokens_per_s": "speed", "step_s": "speed",
    "stall_s": "speed",
}  # fmt: skip
_VALIDATION = "validation_"


class TensorBoard(Callback):
    """Writes each step and validation at once, in one write: a kill cuts off at most the last record."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._file: io.FileIO | None = None

    def begin(self, run: Run) -> None:
        """Note the run. The first point creates the file: until then the metrics may hold lines of steps that are repeated."""
        self._run = run.folder

    def step(self, report: StepReport) -> None:
        """Write a step, whose line is already in the metrics."""
        self._tell(report.step, report.as_dict())

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        """Write a validation, whose line is already in the metrics."""
        self._tell(step, {"step": step, **evaluation.as_dict()})

    def end(self, status: str) -> None:
        """Close the file. A finished run that had nothing left to do writes it first, from its metrics."""
        if self._file is None and status == "finished":
            self._begin_anew()
        if self._file is not None:
            self._file.close()

    def _tell(self, step: int, line: Mapping[str, Any]) -> None:
        if self._file is None:
            self._begin_anew()
        else:
            self._write(step, time.time(), line)

    def _begin_anew(self) -> None:
        """Replace the files of earlier sessions with a new one that holds all lines of the metrics."""
        assert self._run is not None
        now = time.time()
        # A running TensorBoard moves from file to file by name, and two sessions may begin within a second.
        name = f"{_NAME}{now:.6f}.{socket.gethostname()}{_OURS}"
        with Folder.open(self._run) as run, run.inside(FOLDER, make=True) as folder:
            *before, newest = sorted(old for old in folder.names() if old.startswith(_NAME) and old.endswith(_OURS)) or [""]
            for old in before:
                folder.remove(old)
            if newest:  # TensorBoard may be reading it, and would not look for the next file if it were gone
                folder.write(newest, b"")
            self._file = io.FileIO(folder.new_file(name), "w")
        self._record(Event(wall_time=now, file_version=_VERSION))
        # This makes TensorBoard forget what it read from the earlier files.
        self._record(Event(wall_time=now, step=0, session_log=SessionLog(status=SessionLog.START)))
        # The metrics have durations but no times: points are spaced by the time that their steps and validations took.
        wall_time = now - sum(map(_lasted, read_metrics(self._run / _METRICS)))
        for line in read_metrics(self._run / _METRICS):
            wall_time += _lasted(line)
            self._write(line["step"], wall_time, line)

    def _write(self, step: int, wall_time: float, line: Mapping[str, Any]) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in points(line)]
        if values:
            self._record(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))

    def _record(self, event: Event) -> None:
        assert self._file is not None
        RecordWriter(self._file).write(event.SerializeToString())


def _lasted(line: Mapping[str, Any]) -> float:
    """Return the seconds that the work of a line of metrics took."""
    return (number_in(line, "step_s") or 0) + (number_in(line, "validation_s") or 0)


def points(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield (tag, number) for each number of a line of metrics that can be drawn: train/loss, validation/perplexity and so on.
    """
    if line.get("skipped") is True:
        return
    for name in line:
        if (value := number_in(line, name)) is None or name == "step":
            continue
        if name.startswith(_VALIDATION):
            yield f"validation/{name.removeprefix(_VALIDATION)}", value
        elif name in _HEADINGS:
            yield f"{_HEADINGS[name]}/{name}", value
        elif name.endswith("_bytes"):
            yield f"{'memory' if name.endswith('_peak_bytes') else 'traffic'}/{name}", value
