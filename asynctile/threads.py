"""Threads that the system may refuse: `start` says so in one line, whoever wanted them.

The system refuses one under `ulimit -u`, a pids cgroup, or an address space (`ulimit -v`) without room for its stack.
"""

from __future__ import annotations

import threading

from asynctile.errors import DeviceError

#: What Python says where the system refuses one.
REFUSED = "can't start new thread"
WAY_OUT = "raise the limit of threads (ulimit -u, the pids cgroup) or of address space (ulimit -v)"


def start(*threads: threading.Thread) -> None:
    """Start them in this order. DeviceError for the first that is refused: those before it have begun."""
    for thread in threads:
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise refusal(thread.name, error) from error


def refusal(name: str, error: BaseException) -> DeviceError:
    """What is said where the thread `name` was refused with `error`."""
    return DeviceError(f"the system refused the thread {name} ({error or 'no memory'}); {WAY_OUT}")
