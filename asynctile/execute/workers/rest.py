"""Workers without work, in compiled code: which ones look, which sleep and until when, which are woken, and how long they rest.

Everything here runs under the mutex (places.py gives the layout). worker.py has the rest of a worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.execute.workers import native, places
from asynctile.execute.workers.native import CLOCK_MONOTONIC
from asynctile.kernels.cpu.jit import inline

#: Number of looks for work before a worker sleeps, about 10 ns each; number of tries to take the mutex before it blocks.
LOOKS = 200
TRIES = 100
NEVER = np.inf


@inline()
def acquire(control: Any) -> None:
    mutex = control[places.MUTEX_AT]
    for _ in range(TRIES):
        if native.try_lock(mutex) == 0:
            return
        native.pause()
    native.lock(mutex)


@inline()
def count_stall(control: Any, times: Any) -> None:
    """Add up the time that idle workers have waited for moving bytes. Call before idle workers, moves or holding change.

    While work is held for another turn, nothing is added.
    """
    now = native.clock(CLOCK_MONOTONIC)
    if control[places.MOVES] > 0 and control[places.HELD] == 0:
        times[places.STALL] += control[places.IDLE] * (now - times[places.COUNTED])
    times[places.COUNTED] = now


@inline()
def count_moves(control: Any, times: Any, more: int) -> None:
    if control[places.IDLE] > 0:
        count_stall(control, times)
    control[places.MOVES] += more


@inline()
def next_end(control: Any, times: Any) -> float:
    """Return when the first DUE copy ends; NEVER if there is none."""
    up = times[places.FREE_AT_UP] if control[places.LINK_UP] == places.DUE else NEVER
    down = times[places.FREE_AT_DOWN] if control[places.LINK_DOWN] == places.DUE else NEVER
    return min(up, down)


@inline()
def wakes(control: Any, times: Any) -> int:
    """Return how many sleeping workers to signal, since there is more work. For a worker that leaves with an entry."""
    more = control[places.READY] if control[places.HELD] == 0 else np.int64(0)
    if control[places.HELD_COPIES] == 0:
        more += control[places.READY_UP] > 0 and control[places.LINK_UP] == places.FREE
        more += control[places.READY_DOWN] > 0 and control[places.LINK_DOWN] == places.FREE
    asleep = control[places.PARKED] - control[places.WOKEN]
    if more > 0 and control[places.SPINNING] > 0:
        control[places.CALLS] += 1
        more -= control[places.SPINNING]
    if asleep <= 0:
        return 0
    if more <= 0:
        # Else only this worker would notice the end of a copy.
        more = np.int64(control[places.SPINNING] == 0 and next_end(control, times) < times[places.TIMER])
    woken = min(more, asleep)
    control[places.WOKEN] += woken
    return woken


@inline()
def look(control: Any, calls_at: int) -> None:
    """Look for some microseconds whether there is a call. The mutex is released meanwhile."""
    calls = control[places.CALLS]
    control[places.SPINNING] += 1
    native.unlock(control[places.MUTEX_AT])
    for _ in range(LOOKS):
        if native.look(calls_at) != calls:
            break
        native.pause()
    acquire(control)
    control[places.SPINNING] -= 1


@inline()
def sleep(control: Any, times: Any) -> None:
    """Sleep until a signal comes or a copy ends. The mutex is released meanwhile."""
    condition, mutex = control[places.CONDITION_AT], control[places.MUTEX_AT]
    control[places.PARKED] += 1
    until = next_end(control, times)
    if until < times[places.TIMER]:
        times[places.TIMER] = until
        signalled = native.wait_until(condition, mutex, until) == 0
        if times[places.TIMER] == until:
            times[places.TIMER] = NEVER
    else:
        native.wait(condition, mutex)
        signalled = True
    control[places.PARKED] -= 1
    if signalled and control[places.WOKEN] > 0:
        control[places.WOKEN] -= 1
    control[places.WOKEN] = min(control[places.WOKEN], control[places.PARKED])
