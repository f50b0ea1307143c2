"""How much Python some work is, where the clock would measure the machine: calls of functions, Python's and C's."""

import sys
from collections.abc import Callable
from typing import Any


def calls_of(work: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """What work(*args) returns, and the calls that it made in this thread. What a single call of C costs is not seen."""
    count, before = 0, sys.getprofile()

    def seen(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        result = work(*args)
    finally:
        sys.setprofile(before)
    return result, count
