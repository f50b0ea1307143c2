"""Refused threads: a fault planned in `threading` makes this process fail to start threads as the system would.

It works in any process, while root is exempt from `ulimit -u`, and a pids cgroup is not everywhere. threads.py checks how a
program copes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["refused_threads"]


@contextmanager
def refused_threads(chooses: Callable[[int, str], bool]) -> Iterator[list[str]]:
    """Refuse threads within this block, for a process with one such block at a time; yield the names of the refused ones.

    chooses: given how many threads of asynctile were wanted before, and the name of this one, returns whether it is refused.
    Other threads are left alone.
    """
    start, wanted = threading.Thread.start, itertools.count()
    refused: list[str] = []

    def may_start(thread: threading.Thread) -> None:
        if thread.name.startswith("asynctile") and chooses(next(wanted), thread.name):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = may_start  # type: ignore[method-assign, assignment]
    try:
        yield refused
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
