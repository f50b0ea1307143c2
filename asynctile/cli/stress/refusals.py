"""Refused threads: a fault planned in `threading` makes this process fail to start threads as the system would.

It works in any process, while root is exempt from `ulimit -u`, and a pids cgroup is not everywhere. threads.py checks how a
program copes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Refusals"]


class Refusals:
    """Decides which threads are refused.

    chooses: given how many threads of asynctile were wanted before, and the name of this one, returns whether it is refused.
    wanted: how many were wanted so far. refused: the names of the refused ones.
    """

    def __init__(self, chooses: Callable[[int, str], bool]) -> None:
        self.chooses = chooses
        self.wanted = 0
        self.refused: list[str] = []

    @contextmanager
    def in_force(self) -> Iterator[Refusals]:
        """Refuse threads within this block, for a process with one such block at a time. Other threads are left alone."""
        start = threading.Thread.start

        def may_start(thread: threading.Thread) -> None:
            if thread.name.startswith("asynctile"):
                self.wanted += 1
                if self.chooses(self.wanted - 1, thread.name):
                    self.refused.append(thread.name)
                    raise RuntimeError("can't start new thread")
            start(thread)

        threading.Thread.start = may_start  # type: ignore[method-assign, assignment]
        try:
            yield self
        finally:
            threading.Thread.start = start  # type: ignore[method-assign]
