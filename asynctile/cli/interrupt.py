"""Ctrl-C and SIGTERM during a run: the first asks, the second ends the process.

Covers `Interrupt`. What is done when asked (finish the step, save) is session.py's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["EXIT_STATUS", "Interrupt"]

#: What a shell expects of a program that ended because of Ctrl-C.
EXIT_STATUS = 130


class Interrupt:
    """Made inside the task that does the work, on the main thread.

    requested: a signal came. Until `begin_steps` the task is cancelled by it; from then on it must look here.
    """

    def __init__(self) -> None:
        self.requested = False
        self._task: asyncio.Task[Any] | None = asyncio.current_task()

    @contextmanager
    def listening(self, announce: Callable[[str], None]) -> Iterator[None]:
        """Take SIGINT and SIGTERM; `announce` is told, on the loop, what the first leads to."""
        loop = asyncio.get_running_loop()

        def first() -> None:
            when = "after this step, with a checkpoint" if self._task is None else "before the first step"
            announce(f"stopping {when}; once more stops at once")
            if self._task is not None:
                self._task.cancel()

        def handle(_number: int, _frame: FrameType | None) -> None:
            if self.requested:
                # At once means at once: no thread is joined, no file is finished. Only the cursor is given back.
                os.write(sys.stdout.fileno(), b"\x1b[?25h\n" if sys.stdout.isatty() else b"")
                os._exit(EXIT_STATUS)
            self.requested = True
            loop.call_soon_threadsafe(first)

        # Not loop.add_signal_handler: the second signal must work even when the loop is stuck.
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def begin_steps(self) -> None:
        """From here on a signal waits for the end of a step."""
        self._task = None

    def check(self) -> None:
        """For work in other threads, which a cancelled task cannot stop: raise InterruptedError once requested."""
        if self.requested:
            raise InterruptedError("stopped by a signal")
