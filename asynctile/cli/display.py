"""What a run shows while it works: loss, speed, time left, how full each tier is, how much of the step was stalled.

`TerminalDisplay` draws bars that are renewed in place; `PlainDisplay` writes a line every few seconds where stdout is
no terminal (a file, a log of CI). Both take the same calls. What is said at the end of a run is summary.py's.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asynctile import Statistics
from asynctile.cli.terminal import printable
from asynctile.layers import StepReport
from asynctile.layers.evaluation import Evaluation
from asynctile.storage.sizes import format_size

__all__ = ["Display", "PlainDisplay", "TerminalDisplay", "open_display"]

_LINE_EVERY_S = 5.0
_RECENT_STEPS = 20


class Display(Protocol):
    """What session.py and train.py call."""

    def __init__(self, console: Console, pace: Pace) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def stage(self, text: str) -> None:
        """What is being done that is no step. May be called from any thread."""

    def note(self, text: str) -> None:
        """A sentence that stays."""

    def expect(self, steps: int) -> None:
        """How many steps there will be, where that was not known at the start."""

    def progress(self, what: str, done: int, total: int) -> None:
        """How far something has come that is no step and takes several parts."""

    def step(self, report: StepReport) -> None:
        """A step was done."""

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        """The model as it is after `step` was validated."""

    def watch(self, statistics: Callable[[], Statistics] | None) -> None:
        """Where to ask how full the tiers are; None: the engine is about to close."""


def open_display(console: Console, steps: int, done: int) -> Display:
    """The display for this output; `done` of `steps` were done before."""
    kind: type[Display] = TerminalDisplay if console.is_terminal else PlainDisplay
    return kind(console, Pace(steps, done))


class Pace:
    """Speed and time left, over the last steps; what lies between steps counts as time too."""

    def __init__(self, steps: int, done: int) -> None:
        self.steps, self.done = steps, done
        #: when the steps of `_reports` ended, behind the begin of the first of them
        self._ends: deque[float] = deque(maxlen=_RECENT_STEPS + 1)
        self._reports: deque[StepReport] = deque(maxlen=_RECENT_STEPS)

    def add(self, report: StepReport) -> None:
        self.done = report.step
        now = time.monotonic()
        if not self._ends:  # the text, kernels and the model were made ready before it: that does not come again
            self._ends.append(now - report.step_s)
        self._ends.append(now)
        self._reports.append(report)

    @property
    def started(self) -> bool:
        return bool(self._reports)

    @property
    def loss(self) -> float:
        return float(self._reports[-1].loss)

    @property
    def tokens_per_s(self) -> float:
        return float(sum(report.tokens for report in self._reports) / self._step_s)

    @property
    def stalled(self) -> float | None:
        """Share of the recent steps in which compute waited for bytes; None where that is not measured."""
        share = float(sum(report.stall_s for report in self._reports) / self._step_s)
        return None if math.isnan(share) else share

    @property
    def left(self) -> str:
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        seconds = round((self.steps - self.done) * each)
        hours, seconds = divmod(seconds, 3600)
        return (f"{hours}:{seconds // 60:02}" if hours else f"{seconds // 60}") + f":{seconds % 60:02}"

    @property
    def _step_s(self) -> float:
        return max(sum(report.step_s for report in self._reports), 1e-9)


class PlainDisplay:
    """A line every few seconds."""

    def __init__(self, console: Console, pace: Pace) -> None:
        self._console, self._pace = console, pace
        self._statistics: Callable[[], Statistics] | None = None
        self._last = -_LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stage(self, text: str) -> None:
        self._say(text)

    def note(self, text: str) -> None:
        _print(self._console, text)

    def watch(self, statistics: Callable[[], Statistics] | None) -> None:
        self._statistics = statistics

    def expect(self, steps: int) -> None:
        self._pace.steps = steps

    def progress(self, what: str, done: int, total: int) -> None:
        self._say(f"{what}: {done} of {total}")

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        self.note(_validated(step, evaluation, is_best))

    def step(self, report: StepReport) -> None:
        self._pace.add(report)
        pace = self._pace
        if not self._is_due(always=pace.done in (1, pace.steps)):
            return
        tiers = [] if self._statistics is None else _tiers(self._statistics())
        stalled = [] if pace.stalled is None else [f"stalled {pace.stalled:.0%}"]
        parts = [
            f"step {pace.done} of {pace.steps}", f"loss {pace.loss:.4f}", f"{pace.tokens_per_s:,.0f} tokens/s",
            f"{pace.left} left", *stalled, *(f"{tier.name} {tier}" for tier in tiers),
        ]  # fmt: skip
        _print(self._console, "  ".join(parts))

    def _say(self, text: str) -> None:
        if self._is_due():
            _print(self._console, text)

    def _is_due(self, *, always: bool = False) -> bool:
        """Whether a line is written now: asked before it is made, since most steps of a small model write none."""
        now = time.monotonic()
        if always or now - self._last >= _LINE_EVERY_S:
            self._last = now
            return True
        return False


class TerminalDisplay:
    """Bars at the bottom of the terminal, notes above them."""

    def __init__(self, console: Console, pace: Pace) -> None:
        self._pace = pace
        self._stage = ""
        self._statistics: Callable[[], Statistics] | None = None
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        self._stage = printable(text)

    def note(self, text: str) -> None:
        _print(self._live.console, text)

    def watch(self, statistics: Callable[[], Statistics] | None) -> None:
        self._statistics = statistics

    def expect(self, steps: int) -> None:
        self._pace.steps = steps

    def progress(self, what: str, done: int, total: int) -> None:
        self._stage = printable(f"{what}: {done} of {total}")

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        self.note(_validated(step, evaluation, is_best))

    def step(self, report: StepReport) -> None:
        self._pace.add(report)
        self._stage = ""

    def _draw(self) -> Group:
        # Called by the thread that renews the picture, so that tiers are seen in the middle of a step too.
        rows, pace, statistics = Table.grid(padding=(0, 2)), self._pace, self._statistics
        if pace.started:
            rows.add_row("step", _bar(pace.done, pace.steps), f"{pace.done} of {pace.steps}, {pace.left} left")
            if (stalled := pace.stalled) is not None:
                rows.add_row("stalled", _bar(stalled, 1), f"{stalled:.0%} of the step")
        if statistics is not None:
            for tier in _tiers(statistics()):
                rows.add_row(tier.name, _bar(tier.used, tier.cap or tier.peak), str(tier))
        loss = [Text(f"loss {pace.loss:.4f}, {pace.tokens_per_s:,.0f} tokens/s")] if pace.started else []
        return Group(*loss, rows, Text(self._stage))


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


def _tiers(now: Statistics) -> list[Tier]:
    tiers = [Tier("RAM", now.host_used_bytes, now.host_peak_bytes, now.host_memory_bytes)]
    if now.device != "cpu":
        device = Tier(now.device, now.device_used_bytes, now.device_peak_bytes, now.device_memory_bytes)
        tiers.insert(0, device)
    if now.spill_peak_bytes:
        tiers.append(Tier("spill", now.spill_used_bytes, now.spill_peak_bytes, now.spill_limit_bytes))
    return tiers


def _validated(step: int, evaluation: Evaluation, is_best: bool) -> str:
    found = [f"loss {evaluation.loss:.4f}", f"perplexity {evaluation.perplexity:,.2f}"]
    if evaluation.bits_per_byte is not None:
        found.append(f"{evaluation.bits_per_byte:.4f} bits a byte")
    when = f"after step {step}" if step else "before the first step"
    return f"validation {when}: {', '.join(found)}{', the best so far' if is_best else ''}"


def _bar(done: float, total: float) -> ProgressBar:
    return ProgressBar(total=max(total, 1e-9), completed=done, width=24)


def _print(console: Console, text: str) -> None:
    """Text as it is: no colours for numbers, no brackets read as markup, no line broken for a terminal that is none."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
