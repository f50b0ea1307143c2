"""The state that workers and Python share while tables are attached: counters, heaps and rings in arrays, under one mutex.

Covers the arrays, and what Python asks of the workers: a new run, the release of a stretch (the entries between
two marks), a finished transfer, the end.
ask.py carries requests over, worker.py answers them, and places.py gives the layout of the arrays.
"""

from __future__ import annotations

import ctypes
import math
import os

import numpy as np

from asynctile.execute.workers import places
from asynctile.execute.workers.ask import ARRIVE, HOLD, LEAVE, MEET, RELEASE, RESET, ask
from asynctile.execute.workers.native import CLOCK_MONOTONIC
from asynctile.execute.workers.tables import COPY, DOWNLOAD, OPERATION, PASS, UPLOAD, Tables

_libc = ctypes.CDLL(None)


class PlayState:
    """Tables, and the arrays that a run of them changes. `frame` holds all their addresses, for compiled code.

    threads: number of workers of each device. rates: bytes per second of each way of each device's link to RAM, and of its link
    from other devices; 0 without a limit.
    """

    def __init__(self, tables: Tables, threads: int, devices: int, rates: tuple[float, float], eventfd: int) -> None:
        n, stretches = tables.count, len(tables.stretch_at) - 1
        queues, lane = places.QUEUES * devices + 1, places.SIGNALS + -(-devices // 8) * 8
        self.tables = tables
        self.control = _on_lines(places.CONTROL)
        self.times = _on_lines(places.TIMES).view(np.float64)
        self.queues = _on_lines(3, queues)
        self.links = _on_lines(2, queues).view(np.float64)
        self.posts = _on_lines(devices, places.POST)
        self.queue_of = _queue_of(tables, devices)
        self.waiting = np.zeros(n, np.int32)
        self.statuses = np.zeros(n, np.int8)
        self.poison = np.zeros(n, np.int8)
        self.ready_at, self.ended_at = np.zeros((2, n))
        self.heaps = np.zeros((queues, n), np.int32)
        self.stack = np.zeros(n, np.int32)
        self.ring = np.zeros(n, np.int32)
        self.arrivals = np.zeros(n, np.int64)
        self.left = np.zeros(stretches, np.int32)
        self.reports_left = np.zeros(stretches, np.int32)
        self.lanes = _on_lines(devices * threads, lane)
        self._entries = np.diff(tables.stretch_at).astype(np.int32)
        self._reports = np.bincount(tables.stretches, tables.reports != 0, stretches).astype(np.int32)
        self._pid = os.getpid()
        self._arrange(rates, eventfd)
        head = n, stretches, devices, threads, lane
        self.frame = np.array([*head, *(array.ctypes.data for array in self._arrays())], np.int64)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        """Return the arrays in the order in which worker.py reads their addresses."""
        t = self.tables
        return (
            t.kinds, t.successors_at, t.successors, t.travels, t.stretches, t.reports, self.queue_of, t.address, t.words,
            t.words_at, t.counts, t.reals, self.control, self.times, self.queues, self.links, self.posts, self.waiting,
            self.statuses, self.poison, self.ready_at, self.ended_at, self.heaps, self.stack, self.ring, self.arrivals,
            self.left, self.reports_left, self.lanes,
        )  # fmt: skip

    def _arrange(self, rates: tuple[float, float], eventfd: int) -> None:
        at = self.control.ctypes.data
        self.control[[places.MUTEX_AT, places.ONE_AT, places.ONE, places.EVENTFD]] = (
            at + 8 * places.MUTEX, at + 8 * places.ONE, 1, eventfd,
        )  # fmt: skip
        to_ram, from_others = rates
        self.links[places.RATE, :-1].reshape(-1, places.QUEUES)[:, [UPLOAD, DOWNLOAD, PASS]] = to_ram, to_ram, from_others
        self.times[places.TIMER] = np.inf
        self.lanes[:, places.RUNNING] = -1
        attributes = (ctypes.c_int64 * 8)()
        _libc.pthread_condattr_init(attributes)
        _libc.pthread_condattr_setclock(attributes, CLOCK_MONOTONIC)
        _libc.pthread_mutex_init(ctypes.c_void_p(at + 8 * places.MUTEX), None)
        for post in self.posts:
            post[places.CONDITION_AT] = post[places.CONDITION :].ctypes.data
            _libc.pthread_cond_init(ctypes.c_void_p(int(post[places.CONDITION_AT])), attributes)

    @property
    def finished(self) -> int:
        return int(self.control[places.FINISHED])

    @property
    def depth(self) -> tuple[int, int]:
        """Number of released entries of this run that have not begun, and number of running ones."""
        asked, finished, before = self.control[[places.ASKED, places.FINISHED, places.BEFORE]].tolist()
        running = int((self.lanes[:, places.RUNNING] >= 0).sum())
        return max(asked - (finished - before) - running, 0), running

    def reset(self) -> None:
        """Prepare a new run, with nothing released. RuntimeError if something still runs."""
        if not self._ask(RESET):
            raise RuntimeError("a run of these tables has not ended; wait for its released stretches, or attach other tables")
        # No worker looks at these until something is released.
        self.waiting[:] = self.tables.needs
        self.left[:], self.reports_left[:] = self._entries, self._reports
        self.statuses[:] = places.PENDING
        self.poison[:] = 0

    def release(self, stretch: int) -> None:
        self._ask(RELEASE, int(self.tables.stretch_at[stretch + 1]))

    def arrive(self, entry: int, ok: bool) -> None:
        """Report that a transfer is over; at most once for each entry."""
        self._ask(ARRIVE, 2 * entry + ok)

    def hold(self, operations: bool, copies: bool) -> None:
        """Set whether workers may begin no operations, and no copies over links."""
        self._ask(HOLD, operations + 2 * copies)

    @property
    def held(self) -> list[int]:
        """Entries that are ready and may not begin. Read without the mutex, so moving entries may be miscounted."""
        sizes = self.queues[places.SIZE] * self.control[places.HELD_COPIES]
        sizes[:: places.QUEUES] = self.queues[places.SIZE, :: places.QUEUES] * self.control[places.HELD]
        return [int(entry) for heap, size in zip(self.heaps, sizes, strict=True) for entry in heap[:size]]

    def has_work(self, copies: bool) -> bool:
        """Return whether operations run or are ready, even if held. copies: count copies and transfers, too."""
        if self.queues[places.SIZE, :: places.QUEUES].any() or (copies and self.control[places.MOVES]):
            return True
        kinds = self.tables.kinds
        return any(entry >= 0 and kinds[entry] in (OPERATION, COPY) for entry in self.lanes[:, places.RUNNING].tolist())

    def meet(self) -> None:
        """Make everything visible here that workers wrote before a word that was seen here: statuses, numbers, the ring."""
        self._ask(MEET)

    def quit(self) -> None:
        """Send the workers away after the entries that they run; nothing is reported to Python any more."""
        if os.getpid() == self._pid:  # a forked child has no workers, and the mutex may be taken for ever
            self._ask(LEAVE)

    def _ask(self, what: int, value: int = 0) -> bool:
        return bool(ask(self.control, self.times, self.posts, self.arrivals, what, value))


def _queue_of(tables: Tables, devices: int) -> np.ndarray:
    """Return the queue of each entry, (n,) uint16. That of a transfer is not used."""
    kinds, of_device = tables.kinds, places.QUEUES * tables.devices.astype(np.int16)
    is_copy = (kinds >= UPLOAD) & (kinds <= PASS)
    return np.where(of_device < 0, places.QUEUES * devices, of_device + kinds * is_copy).astype(np.uint16)


def _on_lines(*shape: int) -> np.ndarray:
    """Return int64 zeros that begin on a cache line."""
    count = math.prod(shape)
    room = np.zeros(count + 7, np.int64)
    start = -room.ctypes.data % 64 // 8
    return room[start : start + count].reshape(shape)
