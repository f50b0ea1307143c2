"""Reasons to stop a run: Ctrl-C, SIGTERM, a lost terminal or reader, --max-time.

Covers `Interrupt`. The first reason asks the run to stop, a later signal ends it. session.py does what is asked (finish the
step, save).
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
#: A signal that comes sooner belongs to the first: `timeout` signals a process and then its group, and a shell passes on what
#: its terminal has already sent.
AGAIN_S = 2
#: The answer to the first signal.
ONCE_MORE = f"a second signal, at least {AGAIN_S} s later, stops at once"


class Interrupt:
    """Collects requests to stop. Made on the main thread before there is a loop; `run` then does the work.

    asked: a signal came, or nobody reads the output any more. Until `begin_steps` this cancels the work; from then on the work
    must check it. requested: asked, or the time of `end_after` is over, which counts from the first step on. lost: why the
    output is gone, if it is. announce: called in any thread with a sentence for the user, such as what the first signal leads
    to. last_words: the line with which a second signal ends the process. Any thread sets it ahead of time, because the signal
    handler looks nothing up.
    """

    def __init__(self) -> None:
        self.asked = False
        self.lost: OSError | None = None
        self.announce: Callable[[str], None] = lambda _: None
        self.last_words = ""
        self._end_s = math.inf
        #: time of the first signal
        self._signalled_s: float | None = None
        #: set while there is work to cancel or to notify
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = self._stepping = False

    @property
    def requested(self) -> bool:
        return self.asked or (self._stepping and time.monotonic() >= self._end_s)

    def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run `work` as `asyncio.run` does; return None if it ended because it was asked to.

        SIGINT, SIGTERM and SIGHUP are handled from before the loop until after it. The second of a pair may come at any moment.
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
        # Not loop.add_signal_handler: the second signal must work even when the loop is stuck. An ignored signal, as SIGHUP is
        # under nohup, stays ignored.
        taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._signalled) for number in taken}
        try:
            yield
        finally:
            if is_program():  # a second signal may come while the interpreter ends, when no handler may run
                atexit.register(_set, dict.fromkeys(taken, signal.SIG_IGN))
            else:
                _set(before)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._signalled_s is None:
            self._signalled_s = now_s
            self._ask()
        # A terminal that closes may send SIGHUP twice, at any distance: itself, and through its shell.
        elif now_s - self._signalled_s >= AGAIN_S and number != signal.SIGHUP:
            self._end_at_once()

    def _end_at_once(self) -> None:
        """End the process without joining a thread or finishing a file.

        Show the cursor again and print the last words, unless that would block on a reader who stopped reading.
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
        """Note that the output failed, and ask to stop as a signal does. May be called from any thread."""
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
        """Let signals wait for the end of a step from now on."""
        self._stepping = True

    def end_after(self, seconds: float | None) -> None:
        """Request the end this many seconds from now; None: never."""
        if seconds is not None:
            self._end_s = time.monotonic() + seconds

    def check(self) -> None:
        """Raise InterruptedError once asked: for threads, which a cancelled task cannot stop, and for long work between steps.

        When only the time is over, work that has begun may end, so that even short calls make progress.
        """
        if self.asked:
            raise InterruptedError("stopped by a signal")

    def watched(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`, with a `check` before each."""
        for item in items:
            self.check()
            yield item


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake a sleeping `loop` at each signal.

    Python runs a handler when the main thread next runs. A signal does not wake that thread if another thread took it, or if it
    came between the thread's last look and its sleep.
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
