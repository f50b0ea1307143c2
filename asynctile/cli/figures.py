"""The figures of a run in words: what display.py puts into lines and beside bars. The figures themselves are pace.py's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from asynctile import Statistics
from asynctile.cli.pace import Pace
from asynctile.layers import StepReport
from asynctile.layers.evaluation import Evaluation
from asynctile.storage.sizes import format_size

__all__ = ["GAP", "Shown", "Tier", "as_counts", "as_share", "as_sizes", "figures_of", "lines_of", "tiers_of"]

#: Between two figures of a line.
GAP = "  "
#: (done, total) in words
Shown = Callable[[int, int], str]


def as_counts(done: int, total: int) -> str:
    """How much is done, in words."""
    return f"{done:,} of {total:,}"


def as_sizes(done: int, total: int) -> str:
    """The same of bytes."""
    return f"{format_size(done)} of {format_size(total)}"


def as_share(done: int, total: int) -> str:
    """The same of what nobody counts."""
    return f"{done / total:.0%}"


def figures_of(pace: Pace, last: StepReport, validated: tuple[int, Evaluation] | None) -> list[str]:
    """Of the last step and those before it. validated: the last validation, and behind which step it was."""
    figures = [f"loss {last.loss:.4f}"]
    if math.isfinite(pace.smoothed_loss):
        figures.append(f"smoothed {pace.smoothed_loss:.4f}")
    if validated is not None:
        step, evaluation = validated
        figures.append(f"validation {evaluation.loss:.4f} (step {step})")
    figures += [f"lr {last.lr:.2e}", f"{pace.tokens_per_s:,.0f} tokens/s"]
    if (share := pace.utilization) is not None:
        figures.append(f"MFU {share:.0%}")
    return figures


def lines_of(figures: list[str], width: int) -> list[str]:
    """Figures one behind another, in as few lines of that width as take them whole."""
    lines: list[str] = []
    for figure in figures:
        if lines and len(lines[-1]) + len(GAP) + len(figure) <= width:
            lines[-1] += GAP + figure
        else:
            lines.append(figure)
    return lines


@dataclass(frozen=True, slots=True)
class Tier:
    """How full a memory is, in bytes; a cap of None is none."""

    name: str
    used: int
    peak: int
    cap: int | None

    def __str__(self) -> str:
        cap = "" if self.cap is None else f" of {format_size(self.cap)}"
        return f"{format_size(self.used)}{cap} (peak {format_size(self.peak)})"


def tiers_of(now: Statistics) -> list[Tier]:
    """Those that a run uses, from the top down."""
    tiers = [Tier("RAM", now.host_used_bytes, now.host_peak_bytes, now.host_memory_bytes)]
    if now.device != "cpu":
        device = Tier(now.device, now.device_used_bytes, now.device_peak_bytes, now.device_memory_bytes)
        tiers.insert(0, device)
    if now.spill_peak_bytes:
        tiers.append(Tier("spill", now.spill_used_bytes, now.spill_peak_bytes, now.spill_limit_bytes))
    return tiers
