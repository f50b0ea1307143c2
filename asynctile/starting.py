"""Ctrl-C while the program `asynctile` is still being imported: it ends at once, with its status for that.

Nothing has been done by then. Without this a library in the midst of its import would end in a traceback, or swallow Ctrl-C.
Covers `ended_by_ctrl_c` and `leave_it_at_that`, which change nothing in the programs of others that import asynctile: Ctrl-C is
theirs. What it does to a command that has begun is cli/interrupt.py's.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What a shell expects of a program that ended because of Ctrl-C.
EXIT_STATUS = 130


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """What is imported or read in here is part of the program's start. No handler but Python's own is replaced."""
    before = signal.getsignal(signal.SIGINT)
    if not is_program() or before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def is_program() -> bool:
    """Whether `asynctile` was started, or `python -m asynctile`: while it is imported sys.argv does not name a module yet."""
    command = sys.orig_argv[-len(sys.argv) :][:1]
    return [os.path.basename(word) for word in command] in (["asynctile"], ["-masynctile"])


def leave_it_at_that() -> None:
    """Ctrl-C has ended the work: a second one, which `timeout` for instance sends along, changes nothing any more."""
    if is_program():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_STATUS)
