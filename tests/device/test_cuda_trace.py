"""A GPU's times on the host's clock, and stalls of its streams, from timed events read after they have happened."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from asynctile.device import cuda_trace
from asynctile.device.cuda_trace import CudaTrace, GpuClock, Seen
from asynctile.device.driver import Driver
from asynctile.ops import copy
from asynctile.storage.tile import Tile
from asynctile.streams.recorder import Ran, Recorder, Stalled

A, C = (Tile(name, (4,), np.float32) for name in "ac")
USES_A = copy(A, C)


class Times:
    """A driver whose timed events are numbers: their times on the GPU, in milliseconds."""

    def __init__(self) -> None:
        self.destroyed: list[int] = []

    def elapsed_s(self, start: int, end: int) -> float:
        return (end - start) / 1e3

    def bind(self) -> None:
        pass

    def destroy_event(self, event: int) -> None:
        self.destroyed.append(event)


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def clock(times: Times, monkeypatch: pytest.MonkeyPatch) -> GpuClock:
    """A clock whose first span ends at 100 s of the host."""
    monkeypatch.setattr(cuda_trace.time, "perf_counter", lambda: 100.0)
    return GpuClock(cast(Driver, times))


def test_times_are_placed_by_the_first_work_that_lands(clock: GpuClock) -> None:
    assert clock.place((5000, 6000)) == ((6000,), 99.0, 100.0)  # the event that times count from is kept
    assert clock.place((6500, 7000)) == ((6500, 7000), 100.5, 101.0)
    assert clock.at(5500) == 99.5


def test_times_are_counted_from_nearby_because_differences_are_float32(clock: GpuClock, times: Times) -> None:
    clock.place((5000, 6000))
    assert clock.place((50_000, 51_000)) == ((5000, 51_000), 144.0, 145.0)
    assert clock.at(52_000) == 146.0
    clock.close()
    clock.close()
    assert times.destroyed == [50_000]


def told(clock: GpuClock, *works: Seen) -> list[Stalled]:
    trace = Recorder()
    stream = CudaTrace("compute", clock, trace)
    for seen in works:
        stream.landed(seen)
    return [message for message in trace.take(100) if isinstance(message, Stalled)]


FIRST = ("compute", copy(C, C))


def test_a_wait_on_the_gpu_is_charged_to_the_copy_that_came_last(clock: GpuClock) -> None:
    early, late = Seen("upload", C, span=(5000, 5500)), Seen("upload", A, span=(6200, 6900), behind=("download", C))
    work = Seen("compute", USES_A, since=99.5, stall=(6100, 6950), span=(6950, 7000), copies=(early, late))
    (stall,) = told(clock, Seen(*FIRST, span=(5000, 6000)), work)
    assert (stall.began, stall.ended, stall.idle_s, stall.since) == pytest.approx((100.1, 100.95, 0.85, 99.5))
    assert stall.operation is USES_A and stall.copy[1:4] == ("upload", "copy", A) and stall.copy.behind == ("download", C)
    assert work.copies == () and stall.copy.began == pytest.approx(100.2)


def test_time_until_the_host_has_read_a_tile_is_a_stall_for_that_tile(clock: GpuClock) -> None:
    read = Ran("spill", "spill-0", "read", A, 99.0, 99.5, 100.4, None)
    (stall,) = told(clock, Seen(*FIRST, span=(5000, 6000)), Seen("compute", USES_A, since=100.5, span=(6600, 7000), held=read))
    assert (stall.began, stall.ended, stall.copy) == (pytest.approx(100.0), pytest.approx(100.5), read)


def test_work_held_back_by_the_host_while_the_gpu_was_busy_is_no_stall(clock: GpuClock) -> None:
    read = Ran("spill", "spill-0", "read", A, 98.0, 98.5, 99.4, None)
    assert told(clock, Seen(*FIRST, span=(5000, 6000)), Seen("compute", USES_A, since=99.5, span=(6000, 7000), held=read)) == []


@pytest.mark.parametrize("is_set", [True, False])
def test_a_copy_of_another_gpu_has_the_times_of_that_gpus_clock(clock: GpuClock, times: Times, is_set: bool) -> None:
    """The time between events of two GPUs is unknown, and so is a copy on a GPU of which nothing has been timed yet."""
    other = GpuClock(cast(Driver, times))
    if is_set:
        other.place((95_000, 96_000))
    read = Seen("peer:1", A, span=(96_200, 96_900), clock=other)
    work = Seen("compute:0", USES_A, since=99.5, stall=(6100, 6950), span=(6950, 7000), copies=(read,))
    found = [(stall.copy.began, stall.copy.ended) for stall in told(clock, Seen(*FIRST, span=(5000, 6000)), work)]
    assert found == [pytest.approx((100.2, 100.9))] * is_set
