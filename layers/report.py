"""The report of a training step: one frozen record, which is one line of metrics.jsonl. Also reads such lines again.

Covers `StepReport`, `read_metrics` and `number_in`. evaluation.py reports validations. The program writes the lines.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from asynctile.measure.statistics import StepTraffic
from asynctile.storage.input import parse_json, read_lines

#: Fields of an engine's StepTraffic: peaks, which are reported as they are, and moved bytes, of which the growth is.
PEAKS = tuple(name for name in StepTraffic._fields if name.endswith("_peak_bytes"))
MOVED = tuple(name for name in StepTraffic._fields if name.endswith("_bytes") and name not in PEAKS)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of one training step. Times are in seconds, sizes in bytes, the loss in nats per token.

    - step: the number of updates that the model has had. loss: the mean over the targets that count. lr: the learning rate.
    - grad_norm: the global norm of the gradient, before clipping.
    - tokens: the targets that the step was trained on, without those of -100.
    - step_s: the duration. tokens_per_s: all positions of the batch, B * T, a second. This is the speed of the arithmetic,
      which also computes ignored positions.
    - stall_s: seconds in which compute waited for a transfer; nan if that is not measured, as in Statistics.
    - uploaded_bytes, downloaded_bytes: from and to RAM in this step, of all devices together. passed_bytes: from one device to
      another. sent_bytes, received_bytes: tiles to and from other nodes. spill_read_bytes, spill_written_bytes: between RAM
      and the spill folder.
    - device_peak_bytes, host_peak_bytes, spill_peak_bytes: peaks since the engine opened. device_peak_bytes is 0 on cpu, where
      RAM is the device. On several devices it is the highest peak of one.
    - skipped: the loss (or, with clip_norm, the gradient) was not finite, and nothing was updated.
    - played: the step ran by a schedule without Python, instead of as coroutines. The results are the same.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    step_s: float
    tokens_per_s: float
    stall_s: float
    uploaded_bytes: int
    downloaded_bytes: int
    passed_bytes: int
    sent_bytes: int
    received_bytes: int
    spill_read_bytes: int
    spill_written_bytes: int
    device_peak_bytes: int
    host_peak_bytes: int
    spill_peak_bytes: int
    skipped: bool = False
    played: bool = False

    @classmethod
    def between(cls, before: StepTraffic, after: StepTraffic, *, step_s: float, positions: int, **values: Any) -> Self:
        """Return the report of a step that took `step_s` seconds.

        before, after: the engine's traffic at its begin and end. positions: those of its batch. values: the other fields.
        """
        return cls(
            **values,
            step_s=step_s,
            tokens_per_s=positions / step_s,
            **{name: getattr(after, name) - getattr(before, name) for name in ("stall_s", *MOVED)},
            **{name: getattr(after, name) for name in PEAKS},
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a line of metrics.jsonl, for JSON. Numbers that are not finite become strings."""
        return as_json({field.name: getattr(self, field.name) for field in fields(self)})


def as_json(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line with strings in place of numbers that are not finite, which JSON cannot hold."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()
    }


def read_metrics(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics.jsonl that are objects with a whole number as `step`.

    All other lines are left out: a killed run may have cut them. Other values in a line are not checked; see `number_in`.
    OSError, with the file's name, if it cannot be read or has a line of more than LINE_NBYTES.
    """
    for text in read_lines(path):
        try:
            line = parse_json(text, finite=False)
        except ValueError:
            continue
        if isinstance(line, dict) and type(line.get("step")) is int and 0 <= line["step"] < 1 << 53:
            yield line


def number_in(line: Mapping[str, Any], name: str) -> float | int | None:
    """Return a finite number of a line; None if it has none of this name.

    Lines of skipped steps or of other versions may lack numbers.
    """
    value = line.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None
