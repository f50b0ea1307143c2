"""The time that a test has (pytest-timeout, by SIGALRM), and what does not count.

A checkout whose kernels nobody has compiled takes 25 s of a CPU for that, in whichever test opens the first engine: more than
some tests may take, and on a machine with other work more than any.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

#: Compiling is given up after so many seconds, on whatever machine.
MOST_S = 600.0


@contextmanager
def paused() -> Iterator[None]:
    """The test's clock stands in here; from any thread. Nothing where no clock runs."""
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    if left_s:
        signal.setitimer(signal.ITIMER_REAL, MOST_S)
    try:
        yield
    finally:
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, left_s)


def not_counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, during which the clock stands."""

    @wraps(function)
    def called(*args: Any, **more: Any) -> Any:
        with paused():
            return function(*args, **more)

    return called
