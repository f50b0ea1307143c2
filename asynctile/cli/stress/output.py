"""The output of stress: a line now and then while it runs, the summary, and the report as JSON.

Covers words and layout. tally.py counts.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from asynctile import __version__
from asynctile.cli.stress.disturb import Landed
from asynctile.cli.stress.settings import StressSettings
from asynctile.cli.stress.tally import Tally
from asynctile.cli.terminal import print_rows, say
from asynctile.layers.training_state import surroundings
from asynctile.storage.folder import write_json
from asynctile.storage.sizes import format_size

__all__ = ["StressDisplay", "summary", "write_report"]

_LINE_EVERY_S = 10.0
_SHOWN = 5


class StressDisplay:
    """Writes a line about `tally` now and then, from `showing` on. stage: what is done before the first round."""

    def __init__(self, settings: StressSettings, tally: Tally) -> None:
        self.stage = ""
        self._settings, self._tally = settings, tally
        self._began_s = time.monotonic()

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Write the lines in a thread of its own, because a round may keep the loop busy."""
        ended = Event()
        thread = Thread(target=self._write_lines, args=(ended,), name="stress-display", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def note(self, text: str) -> None:
        """Show a sentence."""
        say(f"{text}\n")

    def _write_lines(self, ended: Event) -> None:
        whole = f" of {self._settings.minutes:g} min" if self._settings.minutes is not None else ""
        while not ended.wait(_LINE_EVERY_S):
            seconds, failures = int(time.monotonic() - self._began_s), len(self._tally.failures)
            rounds = ", ".join(f"{name} {self._tally.rounds[name]}" for name in self._settings.scenarios)
            self.note(f"{seconds // 60}:{seconds % 60:02}{whole}: {self.stage or rounds}; {failures} failures")


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


def write_report(path: Path, settings: StressSettings, tally: Tally, *, seconds: float, status: int) -> None:
    """Write options, library versions and all counters as JSON."""
    write_json(path, {
        "asynctile": __version__, "python": sys.version.split()[0], "system": platform.platform(), "cores": os.cpu_count(),
        "libraries": surroundings(), "options": settings.to_json(), "seconds": round(seconds, 1), "status": status,
        **tally.to_json(),
    })  # fmt: skip


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
        *_mishaps(tally),
        ("damaged", f"{harmed.total} inputs: {harmed.statuses[2]} refused, {harmed.statuses[0]} accepted; at most "
                    f"{harmed.slowest_s:.1f} s and {format_size(harmed.most_nbytes)} above the import"),
    ]  # fmt: skip


def _mishaps(tally: Tally) -> list[tuple[str, str]]:
    """Return how often trainings of two nodes were disturbed, and a row for each kind of mishap."""
    late = f"; too late, and drawn again: {tally.too_late}" if tally.too_late else ""
    kinds = [(f"  {kind}", f"{number} times, noticed within {tally.noticed_s[kind]:.2f} s")
             for kind, number in sorted(tally.nodes.items())]
    return [("nodes", f"disturbed {tally.nodes.total()} times{late}"), *kinds]


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
