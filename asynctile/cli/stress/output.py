"""The output of stress: a table while it runs, renewed in place on a terminal, else a line now and then, and the summary.

Covers words and layout. tally.py counts, report.py writes the same as JSON.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from asynctile.cli.rows import print_rows
from asynctile.cli.stress.disturb import Landed
from asynctile.cli.stress.settings import StressSettings
from asynctile.cli.stress.tally import Tally
from asynctile.storage.sizes import format_size

__all__ = ["LiveTable", "summary"]

_LINE_EVERY_S = 10.0
_SHOWN = 5


class LiveTable:
    """Shows `tally` from `showing` on. stage: what is done before the first round."""

    def __init__(self, console: Console, settings: StressSettings, tally: Tally) -> None:
        self.stage = ""
        self._console, self._settings, self._tally = console, settings, tally
        self._began_s = time.monotonic()

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Renew the display in a thread of its own, because a round may keep the loop busy."""
        if self._console.is_interactive:
            with Live(console=self._console, get_renderable=self._draw, refresh_per_second=4, transient=True):
                yield
            return
        ended = Event()
        thread = Thread(target=self._write_lines, args=(ended,), name="stress-display", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def note(self, text: str) -> None:
        """Show a sentence that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _write_lines(self, ended: Event) -> None:
        while not ended.wait(_LINE_EVERY_S):
            rounds = ", ".join(f"{name} {self._tally.rounds[name]}" for name in self._settings.scenarios)
            self.note(f"{self._clock()}: {self.stage or rounds}; {len(self._tally.failures)} failures")

    def _draw(self) -> Group:
        tally = self._tally
        table = Table(box=None, pad_edge=False)
        for title in ("scenario", "rounds", "seconds", "failures"):
            table.add_column(title, justify="left" if title == "scenario" else "right")
        for name in self._settings.scenarios:
            failures = sum(failure.scenario == name for failure in list(tally.failures))
            table.add_row(name, str(tally.rounds[name]), f"{tally.seconds[name]:.1f}", str(failures))
        lines = [Text(f"{name:<11}{text}") for name, text in _counted(tally)]
        last = [Text(failure.what, style="red", overflow="ellipsis", no_wrap=True) for failure in tally.failures[-1:]]
        return Group(Text(f"seed {self._settings.seed}, {self._clock()}  {self.stage}"), table, *lines, *last)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._began_s)
        whole = f" of {self._settings.minutes:g} min" if self._settings.minutes is not None else ""
        return f"{seconds // 60}:{seconds % 60:02}{whole}"


def summary(settings: StressSettings, tally: Tally) -> None:
    """Print the totals, and each failure with the command that repeats it."""
    rounds = ", ".join(f"{name} {tally.rounds[name]}" for name in settings.scenarios)
    void = f" (and {tally.void} void rounds that did not strain the budget)" if tally.void else ""
    counted = _counted(tally) + (_disturbed(tally) if settings.scenarios == ("cancel",) else [])
    print_rows([("seed", str(settings.seed)), ("rounds", rounds + void), *counted, ("found", _found(tally))])
    for failure in tally.failures[:_SHOWN]:
        print(f"{failure.kind} in {failure.scenario}: {failure.what}\n    repeat with: {failure.command}")
    if len(tally.failures) > _SHOWN:
        print(f"and {len(tally.failures) - _SHOWN} more; use --report FILE.json to list them all")


def _counted(tally: Tally) -> list[tuple[str, str]]:
    moved, harmed = tally.moved, tally.harmed
    return [
        ("engines", _numbers(tally.engines)),
        ("played", f"{tally.played} of {tally.steps} steps, {tally.played_runs} of {tally.runs} runs of programs"),
        ("link", f"{format_size(moved['uploaded'])} to the device, {format_size(moved['downloaded'])} back"),
        ("spill", f"{format_size(moved['spill_read'])} read, {format_size(moved['spill_written'])} written"),
        ("faults", f"{tally.injected.total()} injected in {tally.faulted} rounds: {tally.survived} survived, "
                   f"{tally.reported} reported cleanly"),
        ("cancelled", f"{tally.cancellations} times"),
        ("killed", f"{tally.kills} times, {tally.kills_in_save} of them inside a save"),
        ("signalled", f"{tally.pairs.total()} pairs, by how the training ended: {_numbers(tally.pairs)}"),
        ("damaged", f"{harmed.total} inputs: {harmed.statuses[2]} refused, {harmed.statuses[0]} accepted; at most "
                    f"{harmed.slowest_s:.1f} s and {format_size(harmed.most_nbytes)} above the import"),
    ]  # fmt: skip


def _numbers(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counted.items())) or "none"


def _disturbed(tally: Tally) -> list[tuple[str, str]]:
    """Return a row for each public coroutine with where disturbances met it."""
    places = sum((found.places for found in tally.disturbed.values()), Counter[str]())
    rows = [("on", ", ".join(f"{place} {number}" for place, number in sorted(places.items())))]
    for name, found in sorted(tally.disturbed.items()):
        where = ", ".join(f"{found.landed[landed]} {landed}" for landed in (Landed.BEFORE, Landed.INSIDE, Landed.AFTER))
        rows.append((f"  {name}", where))
    return rows


def _found(tally: Tally) -> str:
    return (f"{format_size(tally.lost_bytes)} lost; {tally.failed('lost')} rounds lost bytes, {tally.failed('leaked')} leaked, "
            f"{tally.failed('hung')} hung, {tally.failed('touched')} touched foreign files, {tally.failed('greedy')} "
            f"took too much memory, {tally.failed('failed')} failed otherwise")
