"""A plugin that fails tests which block a loop: `pytest -p tests.strict`, run by `make strict` under python -X dev.

Every test runs on asyncio's loop and on uvloop, both in debug mode. A test fails where asynctile's code blocks a loop that runs
in that thread, be it the caller's or the engine's own: by a file, a lock that another thread holds, a sleep or a socket. It
also fails where a callback keeps the caller's loop for 0.1 s. Every test checks that tasks are awaited and files closed,
because warnings are errors.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop
from blockbuster import blockbuster_ctx

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop,
}  # fmt: skip
#: Functions that may block a loop, by file, with the reason.
MEANT = {
    # Asks the kernel how much memory is left if no cap was given. These files are not on a disk; it takes half a millisecond.
    "asynctile/engine.py": {"__init__", "write_trace"},  # write_trace is no coroutine: its caller decides where it blocks
    # Joins a thread whose last act is to say that it ends.
    "asynctile/loop/keeper.py": {"join"},
    # Sets disk space aside when it gives out a place in the spill file, before anything is moved there.
    "asynctile/storage/spill.py": {"_grow"},
    # Looks at what a killed save has left; only tests call it directly.
    "asynctile/storage/beside.py": {"recover_folder"},
}


@contextmanager
def nothing_blocks() -> Iterator[None]:
    """Raise BlockingError where asynctile's code blocks the loop of its thread."""
    with blockbuster_ctx("asynctile") as guard:
        for function in guard.functions.values():
            for file, names in MEANT.items():
                function.can_block_in(file, names)
        yield


class Complaints(logging.Handler):
    """A log of the warnings of asyncio's debug mode about this thread's loop."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.found.append(record.getMessage())


@contextmanager
def complaints() -> Iterator[list[str]]:
    handler, logger = Complaints(), logging.getLogger("asyncio")
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.fixture(autouse=True)
def _strictly() -> Iterator[None]:
    with nothing_blocks(), complaints() as found:
        yield
    assert found == []
