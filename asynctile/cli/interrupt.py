"""Ctrl-C, SIGTERM, a terminal or a reader that goes, time that is over: the first asks a run to stop, a second signal ends it.

Covers `Interrupt`. What is done when asked (finish the step, save) is session.py's.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from asynctile.starting import EXIT_STATUS

__all__ = ["EXIT_STATUS", "Interrupt"]

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Made inside the task that does the work, on the main thread.

    requested: a signal came, nobody reads the output any more, or `seconds` have passed; until `begin_steps` the task is
    cancelled by the first two, and goes on beyond the third; from then on it must look here. lost: why the output is gone, if
    it is.
    """

    def __init__(self, seconds: float | None = None) -> None:
        #: by a signal or for the output
        self.asked = False
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self.lost: OSError | None = None
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._announce: Callable[[str], None] = lambda _: None

    @property
    def requested(self) -> bool:
        return self.asked or (self._task is None and time.monotonic() >= self._end)

    @contextmanager
    def listening(self, announce: Callable[[str], None]) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP; `announce` is told, on the loop, what the first leads to."""
        self._announce = announce

        def handle(number: int, _frame: FrameType | None) -> None:
            # A terminal that goes may say so twice: itself, and through its shell.
            if self.asked and number != signal.SIGHUP:
                # At once means at once: no thread is joined, no file is finished. Only the cursor is given back.
                os.write(sys.stdout.fileno(), b"\x1b[?25h\n" if sys.stdout.isatty() else b"")
                os._exit(EXIT_STATUS)
            self._ask()

        # Not loop.add_signal_handler: the second signal must work even when the loop is stuck. One that is ignored, as SIGHUP
        # is under nohup, stays ignored.
        taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def lose(self, error: OSError) -> None:
        """The output failed: ask as a signal does. Any thread."""
        self.lost = error
        self._ask()

    def _ask(self) -> None:
        if not self.asked:
            self.asked = True
            self._loop.call_soon_threadsafe(self._asked)

    def _asked(self) -> None:
        when = "after this step, with a checkpoint" if self._task is None else "before the first step"
        self._announce(f"stopping {when}; once more stops at once")
        if self._task is not None:
            self._task.cancel()

    def begin_steps(self) -> None:
        """From here on a signal waits for the end of a step."""
        self._task = None

    def check(self) -> None:
        """For work in other threads, which a cancelled task cannot stop, and for long work between steps: raise
        InterruptedError once asked. What has begun as time runs out is ended: calls that are short get on, too.
        """
        if self.asked:
            raise InterruptedError("stopped by a signal")

    def watched(self, items: Iterable[T]) -> Iterator[T]:
        """`items`, with a `check` before each."""
        for item in items:
            self.check()
            yield item
