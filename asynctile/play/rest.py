"""Workers that have nothing to run: who looks, who sleeps and until when, who is woken, and how long it was. Compiled code.

Everything here is under the mutex (places.py says what stands where); what a worker does otherwise is worker.py's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import inline
from asynctile.play import native, places
from asynctile.play.native import CLOCK_MONOTONIC

#: How often a worker looks for work before it sleeps, some 10 ns each, and tries the mutex before it blocks.
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
    """Before idle workers, moves or holding change: who was idle waited for what moved, if anything did, and for no turn."""
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
    """When the first copy under way ends, of those that only wait for that."""
    up = times[places.FREE_AT_UP] if control[places.LINK_UP] == places.DUE else NEVER
    down = times[places.FREE_AT_DOWN] if control[places.LINK_DOWN] == places.DUE else NEVER
    return min(up, down)


@inline()
def wakes(control: Any, times: Any) -> int:
    """Before a worker leaves with an entry: how many of those who sleep are to be signalled, for there is more."""
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
        # Nobody but this worker would notice the end of a copy.
        more = np.int64(control[places.SPINNING] == 0 and next_end(control, times) < times[places.TIMER])
    woken = min(more, asleep)
    control[places.WOKEN] += woken
    return woken


@inline()
def look(control: Any, calls_at: int) -> None:
    """Under the mutex, which is let go meanwhile: look for some microseconds whether somebody calls."""
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
    """Under the mutex, which is let go meanwhile: until somebody signals or a copy ends."""
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
