"""What a training step reports: one frozen record a step, a line of metrics.jsonl."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step. Seconds, bytes and nats; grad_norm is before clipping; peaks since the engine opened.

    skipped: the loss (or, with clip_norm, the gradient) was not finite and nothing was updated.
    stall_s: seconds in which compute waited for a transfer. device_peak_bytes: 0 on cpu, where RAM is the device.
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

    def as_dict(self) -> dict[str, Any]:
        """For json; numbers that are not finite become strings, since JSON has none."""
        finite = (float("inf"), float("-inf"))
        return {
            key: str(value) if isinstance(value, float) and (value != value or value in finite) else value
            for key, value in asdict(self).items()
        }
