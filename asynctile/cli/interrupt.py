"""Ctrl-C, SIGTERM, a terminal or a reader that goes, time that is over: the first asks a run to stop, a later signal ends it.

Covers `Interrupt`. What is done when asked (finish the step, save) is session.py's.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from asynctile.starting import EXIT_STATUS, is_program

__all__ = ["AGAIN_S", "EXIT_STATUS", "ONCE_MORE", "Interrupt"]

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: A signal that comes sooner is part of the first: `timeout` signals a process and then its group, a shell passes on what its
#: terminal has said already.
AGAIN_S = 2
#: What the first signal is answered with.
ONCE_MORE = f"once more, at least {AGAIN_S} s later, stops at once"


class Interrupt:
    """Made on the main thread, before there is a loop; `run` then does the work.

    asked: a signal came, or nobody reads the output any more. Until `begin_steps` this cancels the work; from then on the work
    must look here. requested: asked, or the time of `end_after` is over, which counts from the first step on. lost: why the
    output is gone, if it is. announce: told, on the loop, what the first signal leads to. last_words: the line with which a
    second signal ends the process. Any thread sets it, ahead of time: the handler looks nothing up.
    """

    def __init__(self) -> None:
        self.asked = False
        self.lost: OSError | None = None
        self.announce: Callable[[str], None] = lambda _: None
        self.last_words = ""
        self._end_s = math.inf
        #: of the first signal
        self._signalled_s: float | None = None
        #: while there is work that may be cancelled, or told
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = self._stepping = False

    @property
    def requested(self) -> bool:
        return self.asked or (self._stepping and time.monotonic() >= self._end_s)

    def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run `work` as `asyncio.run` does; None if it ended because it was asked to.

        SIGINT, SIGTERM and SIGHUP are taken from before the loop to behind it. The second of a pair may come at any of these
        moments.
        """
        with self._listening():
            return asyncio.run(self._attend(work))

    async def _attend(self, work: Coroutine[Any, Any, T]) -> T | None:
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        if self.asked:
            self._loop.call_soon(self._answer)
        try:
            with _woken_by_signals(self._loop):
                return await work
        except (asyncio.CancelledError, InterruptedError):
            if not self.requested:
                raise
            return None
        finally:
            self._loop = None

    @contextmanager
    def _listening(self) -> Iterator[None]:
        # Not loop.add_signal_handler: the second signal must work even when the loop is stuck. One that is ignored, as SIGHUP
        # is under nohup, stays ignored.
        taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._signalled) for number in taken}
        try:
            yield
        finally:
            if is_program():  # of a pair the second may come while the interpreter ends, which is no time for any handler
                atexit.register(_set, dict.fromkeys(taken, signal.SIG_IGN))
            else:
                _set(before)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._signalled_s is None:
            self._signalled_s = now_s
            self._ask()
        # A terminal that goes may say so twice, at any distance: itself, and through its shell.
        elif now_s - self._signalled_s >= AGAIN_S and number != signal.SIGHUP:
            self._end_at_once()

    def _end_at_once(self) -> None:
        """End the process: join no thread, finish no file. Give the cursor back and say the last words, unless that would wait
        for a reader who has stopped reading.
        """
        try:
            output = sys.stdout.fileno()
            words = b"\x1b[?25h\n" if os.isatty(output) else b""
            words += f"{self.last_words}\n".encode(errors="backslashreplace") if self.last_words else b""
            if words and select.select([], [output], [], 0)[1]:
                os.write(output, words)
        finally:
            os._exit(EXIT_STATUS)

    def lose(self, error: OSError) -> None:
        """The output failed: ask as a signal does. Any thread."""
        self.lost = error
        self._ask()

    def _ask(self) -> None:
        if not self.asked:
            self.asked = True
            if (loop := self._loop) is not None:
                loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        if self._answered:
            return
        self._answered = True
        when = "after this step, with a checkpoint" if self._stepping else "before the first step"
        self.announce(f"stopping {when}; {ONCE_MORE}")
        if not self._stepping and self._task is not None:
            self._task.cancel()

    def begin_steps(self) -> None:
        """From here on a signal waits for the end of a step."""
        self._stepping = True

    def end_after(self, seconds: float | None) -> None:
        """Request the end after so long from now; None: never."""
        if seconds is not None:
            self._end_s = time.monotonic() + seconds

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


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake a sleeping `loop` at each signal. Python runs a handler when the main thread next runs. A signal does not wake it
    which another thread took, or which came between its last look and its sleep.
    """
    read, write = socket.socketpair()
    with read, write:
        read.setblocking(False)
        write.setblocking(False)
        before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        loop.add_reader(read, read.recv, 4096)
        try:
            yield
        finally:
            loop.remove_reader(read)
            signal.set_wakeup_fd(before)


def _set(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
