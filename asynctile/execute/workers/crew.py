"""The threads of a player: how they start, get another schedule, and end, also at the end of the interpreter.

worker.py has the loop that they run while they have a schedule, player.py everything else about a player.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import ExitStack

from asynctile.errors import BudgetError, DeviceError
from asynctile.execute.workers.state import PlayState
from asynctile.execute.workers.worker import work
from asynctile.kernels.cpu import blas_memory
from asynctile.streams.stall import LEFT_BEHIND
from asynctile.threads import start

logger = logging.getLogger(__name__)

#: Seconds for which the end of the interpreter waits for a running kernel.
LAST_PATIENCE_S = 5.0
#: Linux's PR_SET_TIMERSLACK: how late a thread may wake that sleeps until a copy ends, in nanoseconds; 50000 by default.
_TIMER_SLACK = 29


class Crew:
    """The threads of a player and everything that they hold. They do not hold the player, which may be dropped meanwhile."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.state: PlayState | None = None
        self.attached = 0  # number of changes of `state`
        self.closing = False
        self.was_refused = False
        self.threads: list[threading.Thread] = []
        self._holds = ExitStack()

    def hire(self, count: int) -> bool:
        """Start `count` threads.

        If the system refuses one, change nothing and return False; the log tells why the first time.
        """
        is_whole: Future[bool] = Future()
        threads = [
            threading.Thread(target=self._serve, args=(index, is_whole), name=f"asynctile-player-{index}", daemon=True)
            for index in range(count)
        ]
        try:
            with ExitStack() as undo:
                blas_memory.hold(count)
                undo.callback(blas_memory.let_go, count)
                undo.callback(_send_away, threads, is_whole)
                start(*threads)
                undo.pop_all()
        except (BudgetError, DeviceError) as error:
            if not self.was_refused:
                logger.warning("steps run as coroutines, slower but with the same results, until this is available: %s", error)
            self.was_refused = True
            return False
        self.threads = threads
        self._holds.callback(blas_memory.let_go, count)
        is_whole.set_result(True)
        return True

    def change(self, state: PlayState | None) -> None:
        """Replace the attached state. Workers leave the old one after the entries that they run now."""
        with self.changed:
            before, self.state = self.state, state
            self.attached += 1
            if before is not None:
                before.quit()
            self.changed.notify_all()

    def dismiss(self, patience_s: float | None) -> None:
        self.closing = True
        self.change(None)
        until = None if patience_s is None else time.monotonic() + patience_s
        if threading.current_thread() in self.threads:
            return  # the garbage collector has dropped the player in a worker
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(None if until is None else max(0.0, until - time.monotonic()))
                if thread.is_alive():
                    logger.warning(LEFT_BEHIND, thread.name)
        self._holds.close()

    def _serve(self, index: int, is_whole: Future[bool]) -> None:
        if not is_whole.result():
            return
        ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)
        seen = 0
        while True:
            with self.changed:
                while not self.closing and (self.state is None or self.attached == seen):
                    self.changed.wait()
                if self.closing:
                    return
                state, seen = self.state, self.attached
            assert state is not None
            work(state.frame, index)
            del state  # an idle thread must not hold the arrays


def _send_away(threads: Iterable[threading.Thread], is_whole: Future[bool]) -> None:
    is_whole.set_result(False)
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def drop(crew: Crew, eventfd: int, pid: int) -> None:
    """Dismiss the crew when a player is closed or dropped, or the interpreter ends.

    No worker may run compiled code that is being taken down. In a forked child, there is no crew to dismiss.
    """
    if os.getpid() == pid and not crew.closing:
        crew.dismiss(LAST_PATIENCE_S)
    os.close(eventfd)
