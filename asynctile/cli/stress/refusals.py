"""Threads of this process that are refused as the system would refuse them, by a fault planned in `threading`.

Root is exempt from `ulimit -u`, and a pids cgroup is not everywhere; this works in any process. What a program makes of it is
threads.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Refusals"]


class Refusals:
    """chooses: given how many threads of asynctile were wanted before, and the name of this one, whether it is refused.

    wanted: how many were, since they are in force. refused: the names of those that were.
    """

    def __init__(self, chooses: Callable[[int, str], bool]) -> None:
        self.chooses = chooses
        self.wanted = 0
        self.refused: list[str] = []

    @contextmanager
    def in_force(self) -> Iterator[Refusals]:
        """For a process with one of these at a time. Threads of others are left alone."""
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
