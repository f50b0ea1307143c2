"""The display of a run while it works: loss, speed, time left, fill of each tier, share of each step that was stalled.

`TerminalDisplay` draws bars that are renewed in place, as wide as the terminal. `PlainDisplay` writes a line every few
seconds where stdout is not a terminal (a file, a CI log). Both have the same methods. pace.py computes the figures,
figures.py puts them into words, and summary.py writes the end of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asynctile import Statistics
from asynctile.cli.figures import Shown, as_counts, figures_of, line_of, lines_of, tiers_of
from asynctile.cli.pace import Ahead, RunPace
from asynctile.cli.terminal import open_console, printable
from asynctile.layers import StepReport
from asynctile.layers.evaluation import Evaluation

__all__ = ["Display", "PlainDisplay", "TerminalDisplay", "bars", "open_display"]


_LINE_EVERY_S = 5.0


class Display:
    """What both displays do: keep the pace, and show sentences."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pace: RunPace | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stage(self, text: str) -> None:
        """Show work that is not a step. May be called from any thread."""

    def progress(self, what: str, done: int, total: int, shown: Shown = as_counts) -> None:
        """Show how much of some other work, `what`, is done, until all `total` of it is. From any thread.

        shown: puts the numbers into words.
        """

    def note(self, text: str) -> None:
        """Show a sentence that stays."""
        _print(self._console, text)

    def begin(self, ahead: Ahead) -> None:
        """Begin to show steps."""
        self._pace = RunPace(ahead)

    def step(self, report: StepReport) -> None:
        """Show a finished step."""
        if self._pace is not None:
            self._pace.step(report)

    def validating(self, done: int, total: int) -> None:
        """Show how many batches of a validation are done."""
        if self._pace is not None:
            self._pace.validating(done, total)
        self.progress("validating", done, total)

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        """Show the validation of the model after `step`."""
        found = [f"loss {evaluation.loss:.4f}", f"perplexity {evaluation.perplexity:,.2f}"]
        if evaluation.bits_per_byte is not None:
            found.append(f"{evaluation.bits_per_byte:.4f} bits per byte")
        when = f"after step {step}" if step else "before the first step"
        self.note(f"validation {when}: {', '.join(found)}{', best so far' if is_best and step else ''}")

    def validated(self) -> None:
        """Note that steps continue after a validation and what followed it."""
        if self._pace is not None:
            self._pace.validated()

    def saved(self) -> None:
        """Note that steps continue after a checkpoint, which may still be written."""
        if self._pace is not None:
            self._pace.saved()

    def watch(self, statistics: Callable[[], Statistics] | None) -> None:
        """Set where to ask how full the tiers are; None: the engine is about to close."""


def open_display(console: Console) -> Display:
    """Return the display for this output."""
    return TerminalDisplay(console) if console.is_interactive else PlainDisplay(console)


def bars(stack: ExitStack) -> Callable[..., None]:
    """Return the progress of bars on a terminal; elsewhere one that writes nothing, since another program reads the output."""
    console = open_console(lambda _: None)
    if not console.is_interactive:
        return lambda *_, **__: None
    return stack.enter_context(open_display(console)).progress


class PlainDisplay(Display):
    """A display that writes a line every few seconds. Lines do not show the tiers: the end of the run reports their peaks."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = -_LINE_EVERY_S

    def stage(self, text: str) -> None:
        if self._is_due():
            self.note(text)

    def progress(self, what: str, done: int, total: int, shown: Shown = as_counts) -> None:
        if self._is_due():
            self.note(f"{what}: {shown(done, total)}")

    def step(self, report: StepReport) -> None:
        super().step(report)
        pace = self._pace
        if pace is None or not self._is_due(always=pace.done in (1, pace.steps)):
            return
        self.note(line_of(pace, report))

    def _is_due(self, *, always: bool = False) -> bool:
        """Return whether to write a line now. Asked before the line is made, since most steps of a small model write none."""
        now = time.monotonic()
        if always or now - self._last >= _LINE_EVERY_S:
            self._last = now
            return True
        return False


class TerminalDisplay(Display):
    """A display with bars at the bottom of the terminal and notes above them."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._stage = ""
        self._statistics: Callable[[], Statistics] | None = None
        #: the last validation: its step and its result
        self._validated: tuple[int, Evaluation] | None = None
        #: by what is under way: done, total, and both in words
        self._under_way: dict[str, tuple[int, int, str]] = {}
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def watch(self, statistics: Callable[[], Statistics] | None) -> None:
        self._statistics = statistics

    def stage(self, text: str) -> None:
        self._stage = printable(text)

    def progress(self, what: str, done: int, total: int, shown: Shown = as_counts) -> None:
        if done < total:
            self._under_way[what] = done, total, shown(done, total)
        else:
            self._under_way.pop(what, None)

    def begin(self, ahead: Ahead) -> None:
        super().begin(ahead)
        self._stage = ""
        self._under_way.clear()

    def step(self, report: StepReport) -> None:
        super().step(report)
        self._stage = ""

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        super().validation(step, evaluation, is_best)
        self._validated = step, evaluation

    def validated(self) -> None:
        super().validated()
        self._stage = ""

    def saved(self) -> None:
        super().saved()
        self._stage = ""

    def __rich__(self) -> Group:
        """Return the picture of this moment. The refreshing thread asks for it, also in the middle of a step."""
        pace, statistics = self._pace, self._statistics
        rows, under_way, figures = _rows(), _rows(), []
        if pace is not None and (last := pace.last) is not None:
            figures = figures_of(pace, last, self._validated)
            left = "" if pace.left is None else f", {pace.left} left"
            rows.add_row("step", _bar(pace.done, pace.steps), f"{pace.done:,} of {pace.steps:,}{left}")
            if (stalled := pace.stalled) is not None:
                rows.add_row("stalled", _bar(stalled, 1), f"{stalled:.0%} of the step")
        if statistics is not None:
            for tier in tiers_of(statistics()):
                rows.add_row(tier.name, _bar(tier.used, tier.cap or tier.peak), str(tier))
        for what, (done, total, words) in tuple(self._under_way.items()):
            under_way.add_row(printable(what), _bar(done, total), words)
        lines = lines_of(figures, self._console.width)
        return Group(*map(Text, lines), rows, under_way, Text(self._stage))


def _rows() -> Table:
    """Return a table of name, bar and text, in which bars take the space that is left."""
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(no_wrap=True)
    rows.add_column(ratio=1, min_width=4)
    rows.add_column(no_wrap=True)
    return rows


def _bar(done: float, total: float) -> ProgressBar:
    return ProgressBar(total=max(total, 1e-9), completed=done)


def _print(console: Console, text: str) -> None:
    """Print text as it is: no colors for numbers, no markup in brackets; only a terminal breaks lines, between words."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=not console.is_terminal)
