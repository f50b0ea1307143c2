"""What workers and Python share while tables are attached: counters, heaps and rings in arrays, under one mutex.

Covers the arrays, and what Python does to them: a new run, a stretch released, a transfer over, the end. What the workers do
is worker.py's, where in an array something stands places.py. The mutex is held for microseconds, and nobody who holds it asks
for the GIL.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from asynctile.play import places
from asynctile.play.native import CLOCK_MONOTONIC
from asynctile.play.tables import Tables

_libc = ctypes.PyDLL(None)  # keeps the GIL: the mutex is free again in microseconds


class State:
    """Tables, and the arrays that a run of them changes. `frame` has the addresses of all of these, for compiled code."""

    def __init__(self, tables: Tables, threads: int, rates: tuple[float, float], eventfd: int) -> None:
        n, stretches = tables.count, len(tables.stretch_at) - 1
        self.tables = tables
        self.control = _on_lines(places.CONTROL)
        self.times = np.zeros(16)
        self.waiting = np.zeros(n, np.int32)
        self.statuses = np.zeros(n, np.int8)
        self.poison = np.zeros(n, np.int8)
        self.ready_at, self.ended_at = np.zeros((2, n))
        self.heaps = np.zeros((3, n), np.int32)
        self.stack = np.zeros(n, np.int32)
        self.ring = np.zeros(n, np.int32)
        self.arrivals = np.zeros(n, np.int64)
        self.left = np.zeros(stretches, np.int32)
        self.reports_left = np.zeros(stretches, np.int32)
        self.lanes = _on_lines(threads * places.LANE).reshape(threads, places.LANE)
        self._entries = np.diff(tables.stretch_at).astype(np.int32)
        self._reports = np.bincount(tables.stretches, tables.reports != 0, stretches).astype(np.int32)
        self._pid = os.getpid()
        self._arrange(rates, eventfd)
        self.frame = np.array([n, stretches, threads, *(array.ctypes.data for array in self._arrays())], np.int64)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        """In the order in which worker.py reads their addresses."""
        t = self.tables
        return (
            t.kinds, t.successors_at, t.successors, t.travels, t.stretches, t.reports, t.address, t.words, t.words_at, t.counts,
            t.reals, self.control, self.times, self.waiting, self.statuses, self.poison, self.ready_at, self.ended_at,
            self.heaps, self.stack, self.ring, self.arrivals, self.left, self.reports_left, self.lanes,
        )  # fmt: skip

    def _arrange(self, rates: tuple[float, float], eventfd: int) -> None:
        at = self.control.ctypes.data
        mutex, condition = at + 8 * places.MUTEX, at + 8 * places.CONDITION
        self.control[[places.MUTEX_AT, places.CONDITION_AT]] = mutex, condition
        self.control[[places.ONE_AT, places.ONE, places.EVENTFD]] = at + 8 * places.ONE, 1, eventfd
        self.times[[places.RATE_UP, places.RATE_DOWN]] = rates
        self.times[places.TIMER] = np.inf
        self.lanes[:, places.RUNNING] = -1
        self._mutex, self._condition = ctypes.c_void_p(mutex), ctypes.c_void_p(condition)
        attributes = (ctypes.c_int64 * 8)()
        _libc.pthread_condattr_init(attributes)
        _libc.pthread_condattr_setclock(attributes, CLOCK_MONOTONIC)
        _libc.pthread_mutex_init(self._mutex, None)
        _libc.pthread_cond_init(self._condition, attributes)

    @property
    def finished(self) -> int:
        return int(self.control[places.FINISHED])

    @property
    def released(self) -> int:
        """Entries of released stretches."""
        return int(self.control[places.ASKED])

    def reset(self) -> None:
        """As at the start of a run, nothing released. Only when nothing runs: RuntimeError otherwise."""
        with self._locked():
            asked = self.control[places.ASKED]
            if (self.statuses[:asked] == places.PENDING).any():
                raise RuntimeError("a run of these tables has not ended: wait for its released stretches, or attach others")
            self.waiting[:] = self.tables.needs
            self.left[:], self.reports_left[:] = self._entries, self._reports
            self.statuses[:] = places.PENDING
            self.poison[:] = 0
            self.control[[places.ASKED, places.OPENED, places.ARRIVED, places.TAKEN, places.OUT]] = 0

    def release(self, stretch: int) -> None:
        with self._locked():
            self.control[places.ASKED] = max(self.control[places.ASKED], self.tables.stretch_at[stretch + 1])
            self._call()

    def arrive(self, entry: int, ok: bool) -> None:
        """A transfer is over; at most once an entry."""
        with self._locked():
            self.arrivals[self.control[places.ARRIVED]] = 2 * entry + ok
            self.control[places.ARRIVED] += 1
            self._call()

    def quit(self) -> None:
        """Workers leave after the entries that they run; Python is told no more."""
        if os.getpid() != self._pid:
            return  # a forked child has none of the workers, and the mutex may be held by one of them for ever
        with self._locked():
            self.control[places.QUIT], self.control[places.EVENTFD] = 1, -1
            self._call()
            _libc.pthread_cond_broadcast(self._condition)

    def _call(self) -> None:
        """Under the mutex: somebody is to look."""
        self.control[places.CALLS] += 1
        if self.control[places.PARKED] > self.control[places.WOKEN]:
            self.control[places.WOKEN] += 1
            _libc.pthread_cond_signal(self._condition)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        _libc.pthread_mutex_lock(self._mutex)
        try:
            yield
        finally:
            _libc.pthread_mutex_unlock(self._mutex)


def _on_lines(count: int) -> np.ndarray:
    """Zeros that begin on a cache line."""
    room = np.zeros(count + 7, np.int64)
    start = -room.ctypes.data % 64 // 8
    return room[start : start + count]
