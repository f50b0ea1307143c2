"""A worker that sleeps can be signalled as long as it sleeps."""

import os

import numpy as np
from numba import njit

from asynctile.execute.workers import native
from asynctile.execute.workers.places import DUE, DUES, FREE_AT, LINK, MUTEX_AT, PARKED, TIMER, WOKEN
from asynctile.execute.workers.rest import acquire, asleep, sleep
from asynctile.execute.workers.state import PlayState
from asynctile.execute.workers.tables import UPLOAD
from tests.execute.workers.schedules import Marked


@njit(nogil=True)
def sleep_once(control, queues, links, times, posts):
    acquire(control)
    sleep(control, queues, links, times, posts, 0)
    native.unlock(control[MUTEX_AT])
    return asleep(posts, 0)


def test_a_worker_that_wakes_at_its_time_leaves_no_signal_counted_for_another_that_sleeps():
    eventfd = os.eventfd(0)
    try:
        state = PlayState(Marked([UPLOAD]).tables, threads=2, devices=1, rates=(1.0, 0.0), eventfd=eventfd)
        state.control[DUES], state.queues[LINK, UPLOAD], state.links[FREE_AT, UPLOAD] = 1, DUE, 0.0  # a copy that has ended
        state.posts[0, [PARKED, WOKEN]] = 1, 1  # the other worker sleeps; the signal came with the time, and was spent
        assert sleep_once(state.control, state.queues, state.links, state.times, state.posts) == 1
        assert state.posts[0, PARKED] == 1 and state.times[TIMER] == np.inf
    finally:
        os.close(eventfd)
