"""What a loop may not have to put up with, as a plugin: `pytest -p tests.strict`, which `make strict` runs under python -X dev.

Every test that it is given runs on asyncio's loop and on uvloop, both in debug mode, and fails where code of asynctile blocks a
loop that runs in that thread (a file, a lock that another holds, a sleep, a socket), be it the caller's or the engine's own, or
where a callback keeps the caller's loop for 0.1 s. That tasks are awaited and files closed is asked of every test: warnings are
errors.
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
#: By file, who may block a loop, and why.
MEANT = {
    # Asks the kernel how much memory is left, where nobody said: files that are not on a disk, half a millisecond.
    "asynctile/engine.py": {"__init__", "write_trace"},  # write_trace: no coroutine; what it writes is the caller's to await
    # Joins a thread that has said, as the last thing it does, that it ends.
    "asynctile/loop/keeper.py": {"join"},
    # Disk space is set aside where a place in the spill file is given out, before anything is moved there.
    "asynctile/storage/spill.py": {"_grow"},
    # What a save that was killed has left is looked at by tests, which call this as they are.
    "asynctile/storage/beside.py": {"recover_folder"},
}


@contextmanager
def nothing_blocks() -> Iterator[None]:
    """BlockingError where code of asynctile blocks the loop of its thread."""
    with blockbuster_ctx("asynctile") as guard:
        for function in guard.functions.values():
            for file, names in MEANT.items():
                function.can_block_in(file, names)
        yield


class Complaints(logging.Handler):
    """What asyncio's debug mode says of this thread's loop."""

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
