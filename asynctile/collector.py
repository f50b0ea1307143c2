"""Python's collector of cyclic garbage, paused while plans are made: `without_collections`.

Recording a step and deciding its schedule make millions of small objects and no cycles. The collector looks through all of them
again and again: half of the time that a first step plans, and up to a fifth of a large plan.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
#: How many plans are being made in this process, and whether the collector was on before the first of them.
_plans, _was_on = 0, False


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the collector in the whole process, until no plan is being made. It stays off if it was off before."""
    global _plans, _was_on
    with _lock:
        if not _plans:
            _was_on = gc.isenabled()
            gc.disable()
        _plans += 1
    try:
        yield
    finally:
        with _lock:
            _plans -= 1
            if not _plans and _was_on:
                gc.enable()
