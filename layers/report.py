"""What a training step reports: one frozen record a step, a line of metrics.jsonl; and reading such lines again.

Covers `StepReport`, `read_metrics` and `number_in`. What a validation reports is evaluation.py; who writes the lines is the
program's affair.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from asynctile.measure.statistics import StepTraffic
from asynctile.storage.input import parse_json, read_lines

#: What a step adds to of an engine's Statistics, and what is reported as it stands.
GROWING = ("stall_s", "uploaded_bytes", "downloaded_bytes", "spill_read_bytes", "spill_written_bytes")
PEAKS = ("device_peak_bytes", "host_peak_bytes", "spill_peak_bytes")


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step. Seconds, bytes and nats; grad_norm is before clipping; peaks since the engine opened.

    tokens: the targets that the step is trained on, those of -100 left out. tokens_per_s: all positions of the batch, B * T, a
    second: the speed of the arithmetic, which computes the others too.
    skipped: the loss (or, with clip_norm, the gradient) was not finite and nothing was updated. played: it went by a schedule,
    without Python, else by coroutines; the results are the same.
    stall_s: seconds in which compute waited for a transfer; nan where that is not measured, as in Statistics.
    device_peak_bytes: 0 on cpu, where RAM is the device.
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
    spill_read_bytes: int
    spill_written_bytes: int
    device_peak_bytes: int
    host_peak_bytes: int
    spill_peak_bytes: int
    skipped: bool = False
    played: bool = False

    @classmethod
    def between(cls, before: StepTraffic, after: StepTraffic, *, step_s: float, positions: int, **values: Any) -> Self:
        """The report of a step that took so long from one look at its engine to the other. positions: of its batch; values:
        the other fields.
        """
        return cls(
            **values,
            step_s=step_s,
            tokens_per_s=positions / step_s,
            **{name: getattr(after, name) - getattr(before, name) for name in GROWING},
            **{name: getattr(after, name) for name in PEAKS},
        )

    def as_dict(self) -> dict[str, Any]:
        """A line of metrics.jsonl, for json; numbers that are not finite become strings."""
        return as_json({field.name: getattr(self, field.name) for field in fields(self)})


def as_json(line: Mapping[str, Any]) -> dict[str, Any]:
    """The line with strings for numbers that are not finite, since JSON has none."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()
    }


def read_metrics(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The lines of a metrics.jsonl that are objects with a whole number as `step`; others count as cut by a kill, and are left
    out. What else a line holds is not looked at: see `number_in`.

    Raises OSError, with the file's name, if it cannot be read or has a line of more than LINE_NBYTES.
    """
    for text in read_lines(path):
        try:
            line = parse_json(text, finite=False)
        except ValueError:
            continue
        if isinstance(line, dict) and type(line.get("step")) is int and 0 <= line["step"] < 1 << 53:
            yield line


def number_in(line: Mapping[str, Any], name: str) -> float | int | None:
    """A finite number of a line; None if it has none of this name, as lines of skipped steps and of other versions may."""
    value = line.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None
