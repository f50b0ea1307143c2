"""Stalls as a stream of worker threads reports them: the waiting operation, its copy, and the wait of that copy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from asynctile.ops import copy, fill
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from asynctile.streams.recorder import Message, Ran, Recorder, Stalled
from asynctile.streams.stream import Stream
from tests.settle import HANG_S, let_through

A, B, C = (Tile(name, (4,), np.float32) for name in "abc")
USES_A, USES_B = copy(A, C), fill(B, 1.0)


class Bench:
    """A compute stream and two copy streams, traced; copies end when `let` releases them."""

    def __init__(self) -> None:
        lock, self.trace = threading.Lock(), Recorder()
        self.compute, self.upload, self.spill = (Stream(name, lock) for name in ("compute", "upload", "spill"))
        self.streams = self.compute, self.upload, self.spill
        self.gates: dict[str, threading.Event] = {}
        self.begun: dict[str, threading.Event] = {}
        self.told: list[Message] = []
        for stream in self.streams:
            stream.start()
            stream.trace = self.trace

    def copy(self, stream: Stream, tile: Tile, name: str, *waits: StreamEvent) -> StreamEvent:
        self.gates[name], self.begun[name] = threading.Event(), threading.Event()
        return stream.enqueue(waits, held, (self.begun[name], self.gates[name]), is_copy=True, what=tile)

    def run(self, operation: Any, *waits: StreamEvent, work: Callable[..., Any] = int) -> StreamEvent:
        return self.compute.enqueue(waits, work, (), what=operation)

    def let(self, name: str) -> None:
        """Let a copy end, once it has begun and there is nothing to compute."""
        assert self.begun[name].wait(HANG_S)
        self.rests()
        self.gates.pop(name).set()

    def rests(self) -> None:
        """Wait until the compute thread has nothing to do."""
        while not self.compute.idle:
            os.sched_yield()

    def stalls(self) -> list[Stalled]:
        self.told += self.trace.take(1000)
        return [message for message in self.told if isinstance(message, Stalled) and message.stream == "compute"]


def held(begun: threading.Event, gate: threading.Event) -> None:
    begun.set()
    assert gate.wait(HANG_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for gate in made.gates.values():
        gate.set()
    for stream in made.streams:
        stream.close()


def test_an_operation_that_waits_for_an_upload_stalls_until_the_upload_is_over(bench: Bench) -> None:
    load = bench.copy(bench.upload, A, "load")
    event = bench.run(USES_A, load)
    bench.let("load")
    event.wait()
    (stall,) = bench.stalls()
    (upload,) = [ran for ran in bench.told if isinstance(ran, Ran) and ran.what is A]
    assert (stall.operation, stall.copy) == (USES_A, upload)
    assert upload.stream == "upload" and upload.behind is None
    assert stall.since <= stall.began <= upload.ended <= stall.ended
    assert stall.idle_s == stall.ended - stall.began > 0


def test_the_stalls_of_one_thread_add_up_to_the_counted_seconds(bench: Bench) -> None:
    for tile, operation in ((A, USES_A), (B, USES_B), (A, USES_A)):
        event = bench.run(operation, bench.copy(bench.upload, tile, tile.name))
        bench.let(tile.name)
        event.wait()
    assert [stall.copy.what for stall in bench.stalls()] == [A, B, A]
    # the rest of the counted time is what the thread took to wake up
    assert 0 < sum(stall.idle_s for stall in bench.stalls()) <= bench.compute.waiting_s


def test_a_stalled_upload_names_the_read_of_its_tile_that_it_waited_for(bench: Bench) -> None:
    read = bench.copy(bench.spill, A, "read")
    load = bench.copy(bench.upload, A, "load", read)
    event = bench.run(USES_A, load)
    bench.let("read")
    bench.let("load")
    event.wait()
    (stall,) = bench.stalls()
    assert stall.copy.stream == "upload" and stall.copy.behind == ("spill", A)
    assert stall.began <= stall.copy.ready <= stall.copy.began


def test_a_stall_ended_by_other_work_names_the_oldest_waiter_and_its_copys_progress(bench: Bench) -> None:
    read = bench.copy(bench.spill, A, "read")
    load = bench.copy(bench.upload, A, "load", read)
    first, second = bench.run(USES_A, load), bench.run(USES_B, bench.copy(bench.upload, B, "other"))
    assert bench.begun["other"].wait(HANG_S) and bench.begun["read"].wait(HANG_S)
    bench.run(fill(C, 0.0)).wait()
    (stall,) = bench.stalls()
    assert (stall.operation, stall.copy.what, stall.copy.began, stall.copy.ended) == (USES_A, A, 0.0, 0.0)
    assert stall.copy.behind == ("spill", A)
    bench.let("read")
    let_through(bench.spill)
    bench.rests()
    bench.run(fill(C, 0.0)).wait()
    assert bench.stalls()[-1].copy.behind is None  # it is in a queue now
    bench.let("other")
    second.wait()
    bench.let("load")
    first.wait()
    assert [stall.operation for stall in bench.stalls()] == [USES_A, USES_A, USES_B, USES_A]


def test_a_copy_in_flight_when_other_work_ends_the_stall_is_reported_as_in_flight(bench: Bench) -> None:
    event = bench.run(USES_A, bench.copy(bench.upload, A, "load"))
    assert bench.begun["load"].wait(HANG_S)
    bench.rests()
    bench.run(fill(C, 0.0)).wait()
    (stall,) = bench.stalls()
    assert stall.copy.began > 0.0 == stall.copy.ended and stall.copy.thread == "upload"
    bench.let("load")
    event.wait()


def test_waiting_for_an_operation_is_no_stall(bench: Bench) -> None:
    go = threading.Event()
    first = bench.run(fill(C, 0.0), work=lambda: go.wait(HANG_S))
    second = bench.run(USES_A, first)
    go.set()
    second.wait()
    assert bench.stalls() == []


def test_an_untraced_stream_keeps_nothing_of_its_work(bench: Bench) -> None:
    for stream in bench.streams:
        stream.trace = None
    event = bench.run(USES_A, bench.copy(bench.upload, A, "load"))
    bench.let("load")
    event.wait()
    assert bench.stalls() == [] == bench.told and bench.upload.ending is None
