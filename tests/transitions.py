"""A pytest plugin: a failing test prints the last transitions of every tier that it had, a ledger each.

tests/conftest.py registers it. It watches ledgers as they are made and keeps their histories, which are words. So an engine
that has been closed and freed can still be printed, and the plugin keeps no tile or arena alive.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from asynctile.storage.ledger import Ledger
from asynctile.storage.residency import History
from asynctile.storage.sizes import format_size

#: Number of transitions printed for each tier.
PRINTED = 30
#: Number of tiers that are remembered. A test of hypothesis makes thousands; the last ones are those that failed.
TIERS = 16
HEADING = "Last transitions of tiles"


class Transitions:
    """Hooks of pytest that keep a description in words and the history of each tier."""

    def __init__(self) -> None:
        self._watched: deque[tuple[str, History]] = deque(maxlen=TIERS)
        self._make = Ledger.__init__

    def pytest_sessionstart(self) -> None:
        watched, make = self._watched, self._make

        @functools.wraps(make)
        def made(ledger: Ledger, *args: Any, **more: Any) -> None:
            make(ledger, *args, **more)
            arena = ledger.arena
            cap = "no cap" if arena.cap is None else f"a cap of {format_size(arena.cap)}"
            watched.append((f"{arena.argument}, {cap}", ledger.history))

        Ledger.__init__ = made  # type: ignore[method-assign]

    def pytest_sessionfinish(self) -> None:
        Ledger.__init__ = self._make  # type: ignore[method-assign]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Forget earlier tests: no engine lives longer than a test."""
        self._watched.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and self._watched:
            report.sections.append((HEADING, "\n".join(self.told())))
        return report

    def told(self) -> Iterator[str]:
        """Yield the report, line by line."""
        for what, history in self._watched:
            last = history.tell(PRINTED)
            yield f"{what}: {f'the last {len(last)}' if last else 'none'}"
            yield from (f"  {line}" for line in last)
