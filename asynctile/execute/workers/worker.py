"""The compiled loop of a worker: take a ready entry, run it, hand on to its successors; no Python and no GIL.

One mutex guards everything that is shared (places.py gives the layout). It is held between two entries, not while one
runs. A worker serves one device. It first takes a copy whose link is free, then an operation: the earliest in the program of
the ready ones of its device and of the host. It takes neither while that is held. Whatever a worker ends, it hands on to
the successors of all devices, and calls their workers.

A copy over a link of limited rate ends when that link would have carried it, and no worker sleeps for the rest of that
time. The first worker that sees this ends the copy, whichever device it serves. Workers without work look for some
microseconds, then sleep until they are signalled or a copy ends (rest.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray, types

from asynctile.execute.workers import native, places
from asynctile.execute.workers.heap import pop, push
from asynctile.execute.workers.native import CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE
from asynctile.execute.workers.rest import acquire, call, call_one, count_moves, count_stall, has_no_watch, look, signal, sleep
from asynctile.execute.workers.tables import OPERATION, PASS, TRANSFER, UPLOAD
from asynctile.kernels.cpu.jit import inline, loop


class Graph(NamedTuple):
    """The arrays that a run does not change."""

    kinds: Any
    successors_at: Any
    successors: Any
    travels: Any
    stretches: Any
    reports: Any
    queue_of: Any
    address: Any
    words: Any
    words_at: Any
    counts: Any
    words_from: Any
    reals_from: Any


class RunArrays(NamedTuple):
    """The arrays that a run changes."""

    control: Any
    times: Any
    queues: Any
    links: Any
    posts: Any
    waiting: Any
    statuses: Any
    poison: Any
    ready_at: Any
    ended_at: Any
    heaps: Any
    stack: Any
    ring: Any
    arrivals: Any
    left: Any
    reports_left: Any


@inline()
def _tell(control: Any) -> None:
    if control[places.EVENTFD] >= 0:
        native.tell(control[places.EVENTFD], control[places.ONE_AT])


@inline()
def _make_ready(graph: Any, run: Any, entry: int) -> None:
    control, kind = run.control, graph.kinds[entry]
    if UPLOAD <= kind <= PASS or kind == TRANSFER:
        count_moves(control, run.times, 1)
    if kind == TRANSFER:
        run.ring[control[places.OUT]] = entry
        control[places.OUT] += 1
        _tell(control)
    else:
        push(run.queues, run.heaps, np.int64(graph.queue_of[entry]), entry)


@inline()
def _end(run: Any, entry: int, status: int) -> None:
    """Note that an entry is over. `_spread` does what follows from that."""
    control = run.control
    run.statuses[entry] = status
    run.stack[control[places.OVER]] = entry
    control[places.OVER] += 1


@inline()
def _open(graph: Any, run: Any, entry: int) -> None:
    """Note that an entry waits for nothing any more: make it ready, or poisoned."""
    if run.poison[entry] != 0:
        _end(run, entry, places.POISONED)
    else:
        _make_ready(graph, run, entry)


@inline()
def _spread(graph: Any, run: Any) -> None:
    """Let entries that are over go: count down their successors, and pass on through poisoned entries."""
    control, now = run.control, 0.0
    while control[places.OVER] > 0:
        control[places.OVER] -= 1
        entry = np.int64(run.stack[control[places.OVER]])
        is_bad = run.statuses[entry] != places.OK
        _count(graph, run, entry)
        for edge in range(graph.successors_at[entry], graph.successors_at[entry + 1]):
            later = np.int64(graph.successors[edge])
            if is_bad and graph.travels[edge] != 0:
                run.poison[later] = 1
            if _is_timed(graph, run, later):
                ended = run.ended_at[entry]
                if not (_is_timed(graph, run, entry) and not is_bad):
                    now = ended = native.clock(CLOCK_MONOTONIC) if now == 0 else now
                run.ready_at[later] = max(run.ready_at[later], ended)
            run.waiting[later] -= 1
            if run.waiting[later] == 0 and later < control[places.OPENED]:
                _open(graph, run, later)


@inline()
def _count(graph: Any, run: Any, entry: int) -> None:
    """Count one more entry as over. Tell Python if it is the last of its stretch, or the last there that reports."""
    stretch = graph.stretches[entry]
    run.control[places.FINISHED] += 1
    run.left[stretch] -= 1
    is_last = run.left[stretch] == 0
    if graph.reports[entry] != 0:
        run.reports_left[stretch] -= 1
        is_last = is_last or run.reports_left[stretch] == 0
    if is_last:
        _tell(run.control)


@inline()
def _is_timed(graph: Any, run: Any, entry: int) -> Any:
    """Return whether an entry is a copy over a link of limited rate."""
    return UPLOAD <= graph.kinds[entry] <= PASS and run.links[places.RATE, graph.queue_of[entry]] > 0


@inline()
def _settle(graph: Any, run: Any, entry: int, status: int) -> None:
    """End an entry that was run. A copy over a limited link, slower than memory, is only DUE now."""
    if UPLOAD <= graph.kinds[entry] <= PASS:
        queues, links, queue = run.queues, run.links, np.int64(graph.queue_of[entry])
        if _is_timed(graph, run, entry):
            # Counted from when the copy could begin, not from when a busy core let a worker see it: a real link would not wait.
            nbytes = graph.words[graph.words_at[entry] + 2]
            ended = max(links[places.FREE_AT, queue], run.ready_at[entry]) + nbytes / links[places.RATE, queue]
            run.ended_at[entry] = links[places.FREE_AT, queue] = ended
            if ended > native.clock(CLOCK_MONOTONIC):
                queues[places.LINK, queue], queues[places.COPIED, queue] = places.DUE, entry
                run.control[places.DUES] += 1
                return
        queues[places.LINK, queue] = places.FREE
        count_moves(run.control, run.times, -1)
    _end(run, entry, status)


@inline()
def _serve(graph: Any, run: Any) -> None:
    """Carry out the requests of Python since the last time, and end copies whose time has come."""
    control, times, queues = run.control, run.times, run.queues
    if control[places.DUES] > 0:
        now = native.clock(CLOCK_MONOTONIC)
        for queue in range(queues.shape[1]):
            if queues[places.LINK, queue] == places.DUE and now >= run.links[places.FREE_AT, queue]:
                queues[places.LINK, queue] = places.FREE
                control[places.DUES] -= 1
                count_moves(control, times, -1)
                _end(run, queues[places.COPIED, queue], places.OK)
    while control[places.TAKEN] < control[places.ARRIVED]:
        arrival = run.arrivals[control[places.TAKEN]]
        control[places.TAKEN] += 1
        count_moves(control, times, -1)
        _end(run, arrival >> 1, places.OK if arrival & 1 else places.FAILED)
    if control[places.OPENED] < control[places.ASKED]:
        now = native.clock(CLOCK_MONOTONIC)
        while control[places.OPENED] < control[places.ASKED]:
            entry = control[places.OPENED]
            control[places.OPENED] = entry + 1
            run.ready_at[entry] = max(run.ready_at[entry], now)
            if run.waiting[entry] == 0:
                _open(graph, run, entry)


@inline()
def _take(run: Any, device: int) -> Any:
    """Return the entry that a worker of this device is to run now; -1 if none may begin."""
    control, queues, heaps = run.control, run.queues, run.heaps
    first, of_host = places.QUEUES * device, queues.shape[1] - 1
    if control[places.HELD_COPIES] == 0:
        for queue in range(first + 1, first + places.QUEUES):
            if queues[places.SIZE, queue] > 0 and queues[places.LINK, queue] == places.FREE:
                queues[places.LINK, queue] = places.COPYING
                return pop(queues, heaps, queue)
    if queues[places.SIZE, of_host] > 0 and (queues[places.SIZE, first] == 0 or heaps[of_host, 0] < heaps[first, 0]):
        first = of_host
    may = queues[places.SIZE, first] > 0 and control[places.HELD] == 0
    return pop(queues, heaps, first) if may else np.int64(-1)


@inline()
def _perform(graph: Any, entry: int, scratch: int) -> int:
    first = graph.words_at[entry]
    if graph.kinds[entry] != OPERATION:
        native.copy(graph.words[first], graph.words[first + 1], graph.words[first + 2])
        return places.OK
    function, words, reals = graph.address[entry], graph.words_from + 8 * first, graph.reals_from + 8 * native.REALS * entry
    count = graph.counts[entry]
    if count <= 16:
        status = native.call(function, scratch, words, 16, reals)
    elif count <= 48:
        status = native.call(function, scratch, words, 48, reals)
    else:
        status = native.call(function, scratch, words, 128, reals)
    return places.OK if status == 0 or status == -2 else places.FAILED


#: Number of items of a frame before the addresses of its arrays: entries, stretches, devices, workers of each, words of a lane.
_HEAD = 5

# Arrays of int32 are read as unsigned: an index that may be negative costs two more instructions.


@inline()
def _graph(frame: Any) -> Any:
    n = frame[0]
    a = frame[_HEAD:]
    return Graph(
        carray(native.at(a[0]), n, np.int8), carray(native.at(a[1]), n + 1, np.int64), carray(native.at(a[2]), 1, np.uint32),
        carray(native.at(a[3]), 1, np.int8), carray(native.at(a[4]), n, np.uint32), carray(native.at(a[5]), n, np.int8),
        carray(native.at(a[6]), n, np.uint16), carray(native.at(a[7]), n, np.int64), carray(native.at(a[8]), 1, np.int64),
        carray(native.at(a[9]), n, np.int64), carray(native.at(a[10]), n, np.uint32), a[8], a[11],
    )  # fmt: skip


@inline()
def _run(frame: Any) -> Any:
    n, stretches, devices = frame[0], frame[1], frame[2]
    queues = places.QUEUES * devices + 1
    a = frame[_HEAD + 12 :]
    return RunArrays(
        carray(native.at(a[0]), places.CONTROL, np.int64), carray(native.at(a[1]), places.TIMES, np.float64),
        carray(native.at(a[2]), (3, queues), np.int64), carray(native.at(a[3]), (2, queues), np.float64),
        carray(native.at(a[4]), (devices, places.POST), np.int64), carray(native.at(a[5]), n, np.uint32),
        carray(native.at(a[6]), n, np.int8), carray(native.at(a[7]), n, np.int8), carray(native.at(a[8]), n, np.float64),
        carray(native.at(a[9]), n, np.float64), carray(native.at(a[10]), (queues, n), np.uint32),
        carray(native.at(a[11]), n, np.uint32), carray(native.at(a[12]), n, np.uint32), carray(native.at(a[13]), n, np.int64),
        carray(native.at(a[14]), stretches, np.uint32), carray(native.at(a[15]), stretches, np.uint32),
    )  # fmt: skip


@loop((types.int64[::1], types.int64))
def work(frame: Any, me: int) -> None:
    """Serve the tables of a PlayState as its worker number `me`, until told to quit."""
    graph, run = _graph(frame), _run(frame)
    control, times, queues, links, posts = run.control, run.times, run.queues, run.links, run.posts
    devices, device = frame[2], me // frame[3]
    lane_at = frame[_HEAD + 28] + 8 * frame[4] * me
    lane = carray(native.at(lane_at), places.SIGNALS + devices, np.int64)
    since = carray(native.at(lane_at + 8 * places.SINCE), 1, np.float64)
    scratch, signals = lane_at + 8 * places.SCRATCH, lane[places.SIGNALS :]
    calls_at = frame[_HEAD + 16] + 8 * (places.POST * device + places.CALLS)
    entry, status, has_looked = np.int64(-1), np.int64(places.OK), False
    acquire(control)
    while True:
        if entry >= 0:
            _settle(graph, run, entry, status)
        _serve(graph, run)
        _spread(graph, run)
        if control[places.QUIT] != 0:
            break
        entry = _take(run, device)
        if entry >= 0:
            lane[places.RUNNING], since[0], has_looked = entry, native.clock(CLOCK_MONOTONIC_COARSE), False
            called = call(control, queues, posts, signals)
            sleeper = call_one(posts) if called == 0 and has_no_watch(control, queues, links, posts, times) else np.int64(-1)
            native.unlock(control[places.MUTEX_AT])
            if called > 0:
                signal(posts, signals)
            elif sleeper >= 0:
                native.signal(posts[sleeper, places.CONDITION_AT])
            status = np.int64(_perform(graph, entry, scratch))
            acquire(control)
        else:
            lane[places.RUNNING] = -1
            if devices > 1 and call(control, queues, posts, signals) > 0:
                signal(posts, signals)
            count_stall(control, times)
            control[places.IDLE] += 1
            if has_looked:
                sleep(control, queues, links, times, posts, device)
            else:
                look(control, posts, device, calls_at)
            has_looked = not has_looked
            count_stall(control, times)
            control[places.IDLE] -= 1
    lane[places.RUNNING] = -1
    native.unlock(control[places.MUTEX_AT])
