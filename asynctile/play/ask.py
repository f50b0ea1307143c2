"""What Python asks of the workers, in compiled code: a run begins, entries are released, a transfer is over, work is held or
let go, workers leave; and to see what they have written.

Compiled because the mutex must not be held from one bytecode to the next: another thread might get the GIL between them, and
wait for the mutex with it. A call of `ask` keeps the GIL, and no worker asks for that while it holds the mutex.
"""

from __future__ import annotations

from typing import Any

from numba import types

from asynctile.kernels.cpu.jit import loop
from asynctile.play import native, places
from asynctile.play.native import player_supported
from asynctile.play.rest import acquire, count_stall

RESET, RELEASE, ARRIVE, LEAVE, MEET, HOLD = range(6)


def ask(control: Any, times: Any, arrivals: Any, what: int, value: int) -> bool:
    """False for a RESET while something is not over. value: entries to be released; 2 * entry + ok of what has arrived;
    held + 2 * held_copies for a HOLD.

    MEET asks for nothing: who has seen one word of what a worker wrote under the mutex sees all of it from then on, also where
    cores show each other their writes in any order.
    """
    acquire(control)
    is_well, wakes = True, min(1, control[places.PARKED] - control[places.WOKEN])
    if what == RESET:
        wakes = 0
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
        wakes = control[places.PARKED]
    elif what == HOLD:
        count_stall(control, times)
        control[places.HELD], control[places.HELD_COPIES] = value & 1, value >> 1
    if what == MEET:
        wakes = 0
    else:
        control[places.CALLS] += 1
    control[places.WOKEN] += max(wakes, 0)
    native.unlock(control[places.MUTEX_AT])
    for _ in range(wakes):
        native.signal(control[places.CONDITION_AT])
    return is_well


if player_supported():
    ask = loop((types.int64[::1], types.float64[::1], types.int64[::1], types.int64, types.int64), nogil=False)(ask)
