"""Coroutines that have nothing to wait for, run without a loop: where decisions are made and nothing moves."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for; RuntimeError if it has."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("work that must not wait waited for something")
