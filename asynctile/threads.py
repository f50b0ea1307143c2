"""Starting threads: `start` raises one clear error when the system refuses a thread.

The system refuses a thread under `ulimit -u`, under a pids cgroup, or when the address space (`ulimit -v`) has no room for its
stack.
"""

from __future__ import annotations

import threading

from asynctile.errors import DeviceError

#: Python's message when the system refuses a thread.
REFUSED = "can't start new thread"
WAY_OUT = "raise the limit of threads (ulimit -u, the pids cgroup) or of address space (ulimit -v)"


def start(*threads: threading.Thread) -> None:
    """Start threads in this order. DeviceError for the first one that is refused; the threads before it have begun."""
    for thread in threads:
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise refusal(thread.name, error) from error


def refusal(name: str, error: BaseException) -> DeviceError:
    """Return the error for a thread `name` that was refused with `error`."""
    return DeviceError(f"the system refused the thread {name} ({error or 'no memory'}); {WAY_OUT}")
