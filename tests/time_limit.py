"""The time limit of a test (pytest-timeout, by SIGALRM), and the work that does not count towards it.

In a fresh checkout, compiling the kernels takes 25 s of CPU time in the first test that opens an engine. Some tests have less
time, and on a busy machine every test has.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

#: Compiling is given up after this many seconds, on any machine.
MOST_S = 600.0


@contextmanager
def paused() -> Iterator[None]:
    """Stop the test's clock inside the block, from any thread; do nothing if no clock runs."""
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    if left_s:
        signal.setitimer(signal.ITIMER_REAL, MOST_S)
    try:
        yield
    finally:
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, left_s)


def not_counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, with the clock stopped while it runs."""

    @wraps(function)
    def called(*args: Any, **more: Any) -> Any:
        with paused():
            return function(*args, **more)

    return called
