"""The figures of a run in words, for the lines and bars of display.py. pace.py computes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from asynctile import Statistics
from asynctile.cli.pace import RunPace
from asynctile.layers import StepReport
from asynctile.layers.evaluation import Evaluation
from asynctile.storage.sizes import format_size

__all__ = ["MemoryUse", "Shown", "as_counts", "as_share", "as_sizes", "figures_of", "line_of", "lines_of", "tiers_of"]

#: The gap between two figures of a line.
_GAP = "  "
#: Characters of a line outside a terminal, so that it fits into the window of a reader.
_LINE = 99
#: puts (done, total) into words
Shown = Callable[[int, int], str]


def as_counts(done: int, total: int) -> str:
    """Return progress in words, as counts."""
    return f"{done:,} of {total:,}"


def as_sizes(done: int, total: int) -> str:
    """Return progress in words, as sizes in bytes."""
    return f"{format_size(done)} of {format_size(total)}"


def as_share(done: int, total: int) -> str:
    """Return progress in words, as a percentage."""
    return f"{done / total:.0%}"


def figures_of(pace: RunPace, last: StepReport, validated: tuple[int, Evaluation] | None) -> list[str]:
    """Return the figures of the recent steps, in words. last: the report of the newest step.

    validated: the number of steps at the last validation, and its result; None before the first.
    """
    figures = _losses(pace, last)
    if validated is not None:
        step, evaluation = validated
        figures.append(f"validation {evaluation.loss:.4f} (step {step})")
    return [*figures, f"lr {last.lr:.2e}", *_speeds(pace)]


def line_of(pace: RunPace, last: StepReport) -> str:
    """Return a step as one line of less than 100 characters: as many figures as fit, the most useful first."""
    left = [] if pace.left is None else [f"{pace.left} left"]
    stalled = [] if pace.stalled is None else [f"stalled {pace.stalled:.0%}"]
    figures = [f"step {pace.done} of {pace.steps}", *left, *_losses(pace, last), *_speeds(pace), *stalled]
    return lines_of(figures, _LINE)[0]


def _losses(pace: RunPace, last: StepReport) -> list[str]:
    smoothed = [f"smoothed {pace.smoothed_loss:.4f}"] if math.isfinite(pace.smoothed_loss) else []
    return [f"loss {last.loss:.4f}", *smoothed]


def _speeds(pace: RunPace) -> list[str]:
    utilization = [] if pace.utilization is None else [f"MFU {pace.utilization:.0%}"]
    return [f"{pace.tokens_per_s:,.0f} tokens/s", *utilization]


def lines_of(figures: list[str], width: int) -> list[str]:
    """Return the figures in as few lines of that width as possible, without breaking a figure."""
    lines: list[str] = []
    for figure in figures:
        if lines and len(lines[-1]) + len(_GAP) + len(figure) <= width:
            lines[-1] += _GAP + figure
        else:
            lines.append(figure)
    return lines


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The fill of a memory, in bytes; cap None: no cap."""

    name: str
    used: int
    peak: int
    cap: int | None

    def __str__(self) -> str:
        cap = "" if self.cap is None else f" of {format_size(self.cap)}"
        return f"{format_size(self.used)}{cap} (peak {format_size(self.peak)})"


def tiers_of(now: Statistics) -> list[MemoryUse]:
    """Return the tiers that a run uses, fastest first."""
    tiers = [MemoryUse("RAM", now.host_used_bytes, now.host_peak_bytes, now.host_memory_bytes)]
    if now.device != "cpu":
        device = MemoryUse(now.device, now.device_used_bytes, now.device_peak_bytes, now.device_memory_bytes)
        tiers.insert(0, device)
    if now.spill_peak_bytes:
        tiers.append(MemoryUse("spill", now.spill_used_bytes, now.spill_peak_bytes, now.spill_limit_bytes))
    return tiers
