"""Ctrl-C while the program `asynctile` is still being imported: the program ends at once, with status 130.

Nothing has been done by then. Without this, a library in the middle of its import would end in a traceback or swallow Ctrl-C.
`ended_by_ctrl_c` and `leave_it_at_that` change nothing in other programs that import asynctile: those handle Ctrl-C themselves.
cli/interrupt.py handles it once a command has begun.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: The exit status that shells expect of a program ended by Ctrl-C.
EXIT_STATUS = 130


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the program during this block, in which it is starting. Only Python's own handler is replaced."""
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
    """Return whether this process is `asynctile` or `python -m asynctile`. During its import, sys.argv names no module yet."""
    command = sys.orig_argv[-len(sys.argv) :][:1]
    return [os.path.basename(word) for word in command] in (["asynctile"], ["-masynctile"])


def leave_it_at_that() -> None:
    """Ignore Ctrl-C from now on: it has ended the work, and a second one, as `timeout` sends, must change nothing."""
    if is_program():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_STATUS)
