"""The metrics of a run for TensorBoard: event files in RUN/tensorboard, which it finds below any folder that it is pointed at.

Covers `TensorBoard`. Records and their checksums are written by TensorBoard's own package. What is in the files follows from
metrics.jsonl: each session begins them anew from its lines, so a run that was killed and goes on has no step twice and none
too few, also where only a later session was asked for them. Skipped steps have changed nothing and have no point.
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
#: How TensorBoard knows its files, and how these know their own.
_NAME, _OURS = "events.out.tfevents.", ".asynctile"
#: The version of the format, which the first record says.
_VERSION = "brain.Event:2"
#: Under which heading a number of a step stands; bytes are told apart by their names.
_HEADINGS = {
    "loss": "train", "lr": "train", "grad_norm": "train", "tokens": "speed", "tokens_per_s": "speed", "step_s": "speed",
    "stall_s": "speed",
}  # fmt: skip
_VALIDATION = "validation_"


class TensorBoard(Callback):
    """Writes each step and each validation as it comes, in one write: a kill cuts off the last record at most."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._file: io.FileIO | None = None

    def begin(self, run: Run) -> None:
        """The file itself is made with the first point: until then the metrics may have lines of steps that are done again."""
        self._run = run.folder

    def step(self, report: StepReport) -> None:
        """Its line stands in the metrics already."""
        self._tell(report.step, report.as_dict())

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        """As for a step."""
        self._tell(step, {"step": step, **evaluation.as_dict()})

    def end(self, status: str) -> None:
        """A run that had nothing left to do has no point to begin with, and its metrics are all there."""
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
        """Put a new file with all lines of the metrics in the place of those of earlier sessions."""
        assert self._run is not None
        now = time.time()
        # A TensorBoard that is looking on goes from a file to the next by name: two sessions may begin within a second.
        name = f"{_NAME}{now:.6f}.{socket.gethostname()}{_OURS}"
        with Folder.open(self._run) as run, run.inside(FOLDER, make=True) as folder:
            *before, newest = sorted(old for old in folder.names() if old.startswith(_NAME) and old.endswith(_OURS)) or [""]
            for old in before:
                folder.remove(old)
            if newest:  # it would be missed, and the next file then not be looked for
                folder.write(newest, b"")
            self._file = io.FileIO(folder.new_file(name), "w")
        self._record(Event(wall_time=now, file_version=_VERSION))
        # By this it forgets what it has read of the files that were here.
        self._record(Event(wall_time=now, step=0, session_log=SessionLog(status=SessionLog.START)))
        # The metrics have durations and no times: points stand as far apart as their steps and validations lasted.
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
    """Seconds that what a line of metrics tells of took."""
    return (number_in(line, "step_s") or 0) + (number_in(line, "validation_s") or 0)


def points(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(tag, number) of what a line of metrics.jsonl says that can be drawn: train/loss, validation/perplexity and so on."""
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
