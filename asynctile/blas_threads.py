"""One BLAS thread for as long as any engine of the process is open.

A product that is split among threads is summed in another order, which changes bits. Two engines that open and close in turn
must not give each other more threads, so the first engine sets the limit and the last one undoes it.

threadpoolctl lets one thread at a time set limits, the first one that does, and ignores all others without a word. Engines open
and close in threads of a pool, beside programs that have set limits of their own, so each call here takes control first.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from threadpoolctl import OpenBLASController, threadpool_limits

_lock = threading.Lock()
_holders = 0
_limits: Any = None


def hold_one_thread() -> None:
    """Limit BLAS libraries to one thread each, until `let_go` has been called as often as this."""
    global _holders, _limits
    with _lock:
        if _limits is None:
            _take_control()
            _limits = threadpool_limits(1, user_api="blas")
        _holders += 1


def let_go() -> None:
    """Undo one `hold_one_thread`."""
    global _holders, _limits
    with _lock:
        _holders -= 1
        if _holders == 0:
            _take_control()
            _limits.restore_original_limits()
            _limits = None


def _take_control() -> None:
    """Make limits that this thread sets count."""
    OpenBLASController.clear_controlling_thread(force=True)


def holders() -> int:
    """Return how many engines hold the limit now."""
    return _holders


def _start_anew() -> None:
    """Reset the count in a forked child, where no engine is open. The limit stays, so the child's last engine undoes it."""
    global _lock, _holders
    _lock, _holders = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
