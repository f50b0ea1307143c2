"""Requests from Python to the workers, in compiled code: one call of `ask` each.

A request begins a run, releases entries, reports a finished transfer, holds work or lets it go, or sends the workers
away. MEET only makes their writes visible.

The code is compiled because the mutex must not be held from one bytecode to the next: between them another thread might
take the GIL and then wait for the mutex. A call of `ask` keeps the GIL, and no worker asks for the GIL while it holds
the mutex.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from asynctile.execute.workers import native, places
from asynctile.execute.workers.rest import acquire, call_one, count_stall
from asynctile.kernels.cpu.jit import inline, loop

RESET, RELEASE, ARRIVE, LEAVE, MEET, HOLD = range(6)
_ARRAYS = types.int64[::1], types.float64[::1], types.int64[:, ::1], types.int64[::1]


@inline()
def _signal_all(posts: Any) -> None:
    for device in range(posts.shape[0]):
        posts[device, places.WOKEN] = posts[device, places.PARKED]
        for _ in range(posts[device, places.PARKED]):
            native.signal(posts[device, places.CONDITION_AT])


@loop((*_ARRAYS, types.int64, types.int64), nogil=False)
def ask(control: Any, times: Any, posts: Any, arrivals: Any, what: int, value: int) -> bool:
    """Make one request; return False only for a RESET while some entry is not over.

    value: for RELEASE, the number of entries released; for ARRIVE, 2 * entry + ok; for HOLD, held + 2 * held_copies.

    MEET asks for nothing. After it, a thread that has seen one word that a worker wrote under the mutex sees all that
    the worker wrote, even where cores see each other's writes in any order.
    """
    acquire(control)
    is_well, sleeper = True, np.int64(-1)
    if what == RESET:
        is_well = control[places.FINISHED] - control[places.BEFORE] == control[places.ASKED]
        if is_well:
            control[places.BEFORE] = control[places.FINISHED]
            control[places.ASKED] = control[places.OPENED] = 0
            control[places.ARRIVED] = control[places.TAKEN] = control[places.OUT] = 0
    elif what == RELEASE:
        control[places.ASKED] = max(control[places.ASKED], value)
    elif what == ARRIVE:
        arrivals[control[places.ARRIVED]] = value
        control[places.ARRIVED] += 1
    elif what == LEAVE:
        control[places.QUIT], control[places.EVENTFD] = 1, -1
        _signal_all(posts)
    elif what == HOLD:
        count_stall(control, times)
        control[places.HELD], control[places.HELD_COPIES] = value & 1, value >> 1
    if what != MEET:
        for device in range(posts.shape[0]):
            posts[device, places.CALLS] += 1
    if what not in (RESET, MEET, LEAVE):
        sleeper = call_one(posts)  # which calls the workers of other devices if there is work for them
    native.unlock(control[places.MUTEX_AT])
    if sleeper >= 0:
        native.signal(posts[sleeper, places.CONDITION_AT])
    return is_well
