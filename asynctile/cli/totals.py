"""The totals of a run: its lines of metrics, added up. card.py and summary.py show them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asynctile.layers.report import MOVED, PEAKS, number_in

__all__ = ["LOSS", "Line", "Sums"]

Line = Mapping[str, Any]

LOSS = "validation_loss"
#: The training loss is averaged over this many last steps.
_LAST_STEPS = 100


@dataclass
class Sums:
    """Totals over all steps of a run, in counts, seconds and bytes. A peak is the highest of any session."""

    steps: int = 0
    tokens: int = 0
    positions: float = 0.0
    """Positions that tokens_per_s of each step counts: targets that are trained on and all others."""
    step_s: float = 0.0
    stall_s: float = 0.0
    measured_s: float = 0.0
    """Seconds of the steps whose stall_s is known."""
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    passed_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    device_peak_bytes: int = 0
    host_peak_bytes: int = 0
    spill_read_bytes: int = 0
    spill_written_bytes: int = 0
    spill_peak_bytes: int = 0
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST_STEPS))
    """Training losses of the last steps."""
    validation: Line = field(default_factory=dict)
    """The newest line with a validation loss."""
    best: Line = field(default_factory=dict)
    """The line with the lowest validation loss, the first if several have it."""

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Sums:
        """Return the totals of lines of metrics, of which there may be millions."""
        sums = cls()
        for line in lines:
            sums.steps = max(sums.steps, line["step"])
            if (loss := number_in(line, "loss")) is not None:
                sums.losses.append(loss)
            for name in ("tokens", "step_s", "stall_s", *MOVED):
                setattr(sums, name, getattr(sums, name) + (number_in(line, name) or 0))
            sums.positions += (number_in(line, "tokens_per_s") or 0) * (number_in(line, "step_s") or 0)
            if number_in(line, "stall_s") is not None:
                sums.measured_s += number_in(line, "step_s") or 0
            for name in PEAKS:
                setattr(sums, name, max(getattr(sums, name), number_in(line, name) or 0))
            if (loss := number_in(line, LOSS)) is not None:
                sums.validation = line
                if not sums.best or loss < sums.best[LOSS]:
                    sums.best = line
        return sums

    @property
    def validation_loss(self) -> float | None:
        return self.validation.get(LOSS)

    @property
    def tokens_per_s(self) -> float:
        return self.positions / max(self.step_s, 1e-9)

    @property
    def stalled(self) -> float | None:
        return self.stall_s / self.measured_s if self.measured_s else None
