"""Workers without work, in compiled code: which ones look, which sleep and until when, which are woken, and how long they rest.

Everything here runs under the mutex (places.py gives the layout). The workers of a device rest at its post. worker.py has
the rest of a worker.
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
def next_end(control: Any, queues: Any, links: Any) -> float:
    """Return when the first DUE copy ends; NEVER if there is none."""
    first = NEVER
    if control[places.DUES] > 0:
        for queue in range(queues.shape[1]):
            if queues[places.LINK, queue] == places.DUE:
                first = min(first, links[places.FREE_AT, queue])
    return first


@inline()
def asleep(posts: Any, device: int) -> Any:
    """Return the number of workers of a device that sleep and are not signalled."""
    return posts[device, places.PARKED] - posts[device, places.WOKEN]


@inline()
def _ready(control: Any, queues: Any, device: int) -> Any:
    """Return the number of entries that workers of this device alone may begin."""
    first = places.QUEUES * device
    more = queues[places.SIZE, first] if control[places.HELD] == 0 else np.int64(0)
    if control[places.HELD_COPIES] == 0:
        for queue in range(first + 1, first + places.QUEUES):
            more += queues[places.SIZE, queue] > 0 and queues[places.LINK, queue] == places.FREE
    return more


@inline()
def call(control: Any, queues: Any, posts: Any, signals: Any) -> Any:
    """Call idle workers, since there is more work for them; return how many are to be signalled.

    Workers that look see the call. signals: becomes the number of sleeping workers of each device to signal.
    """
    if control[places.IDLE] == 0:
        return np.int64(0)
    ahead = queues[places.SIZE, queues.shape[1] - 1] if control[places.HELD] == 0 else np.int64(0)
    called = np.int64(0)
    for device in range(posts.shape[0]):
        spinning, sleeping = posts[device, places.SPINNING], asleep(posts, device)
        signals[device] = 0
        if spinning + sleeping > 0:
            more = _ready(control, queues, device)
            also = min(ahead, max(spinning + sleeping - more, 0))  # operations of the host, for whoever is idle
            ahead -= also
            more += also
            if more > 0 and spinning > 0:
                posts[device, places.CALLS] += 1
                more -= spinning
            if more > 0 and sleeping > 0:
                woken = min(more, sleeping)
                posts[device, places.WOKEN] += woken
                signals[device] = woken
                called += woken
    return called


@inline()
def call_one(posts: Any) -> Any:
    """Choose a sleeping worker to signal, whichever device it serves; return its device, or -1 if all are awake."""
    for device in range(posts.shape[0]):
        if asleep(posts, device) > 0:
            posts[device, places.WOKEN] += 1
            return np.int64(device)
    return np.int64(-1)


@inline()
def has_no_watch(control: Any, queues: Any, links: Any, posts: Any, times: Any) -> Any:
    """Return whether a copy will end that only busy workers would notice, while others sleep."""
    if control[places.DUES] == 0:
        return False
    sleeping = np.int64(0)
    for device in range(posts.shape[0]):
        if posts[device, places.SPINNING] > 0:
            return False
        sleeping += asleep(posts, device)
    return sleeping > 0 and next_end(control, queues, links) < times[places.TIMER]


@inline()
def signal(posts: Any, signals: Any) -> None:
    """Signal sleeping workers as `call` has said."""
    for device in range(posts.shape[0]):
        for _ in range(signals[device]):
            native.signal(posts[device, places.CONDITION_AT])


@inline()
def look(control: Any, posts: Any, device: int, calls_at: int) -> None:
    """Look for some microseconds whether there is a call. The mutex is released meanwhile."""
    calls = posts[device, places.CALLS]
    posts[device, places.SPINNING] += 1
    native.unlock(control[places.MUTEX_AT])
    for _ in range(LOOKS):
        if native.look(calls_at) != calls:
            break
        native.pause()
    acquire(control)
    posts[device, places.SPINNING] -= 1


@inline()
def sleep(control: Any, queues: Any, links: Any, times: Any, posts: Any, device: int) -> None:
    """Sleep until a signal comes or a copy ends, on whichever link. The mutex is released meanwhile."""
    condition, mutex = posts[device, places.CONDITION_AT], control[places.MUTEX_AT]
    posts[device, places.PARKED] += 1
    until = next_end(control, queues, links)
    if until < times[places.TIMER]:
        times[places.TIMER] = until
        native.wait_until(condition, mutex, until)
        if times[places.TIMER] == until:
            times[places.TIMER] = NEVER
    else:
        native.wait(condition, mutex)
    posts[device, places.PARKED] -= 1
    # Also when its time has come: a signal that comes with the time may be spent on this worker. If it still counted, another
    # that sleeps would pass for one that is signalled, and nobody would signal it again. At worst one is signalled twice.
    posts[device, places.WOKEN] = min(max(posts[device, places.WOKEN] - 1, 0), posts[device, places.PARKED])
