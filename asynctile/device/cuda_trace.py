"""The trace of a GPU's stream: when its work ran on the GPU, and which copies its operations waited for.

Read from timed events that the stream puts around its work and around its waits for copies (cuda_stream.py), once the events
have happened. Every call here is made under the lock of the streams.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from asynctile.device.driver import Driver
from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile
from asynctile.streams.recorder import Ran, Recorder, Stalled

#: The GPU gives the time between two events as float32 milliseconds, which resolve about 2 us at this many seconds.
_FAR_S = 8.0


@dataclass(slots=True, eq=False)
class Seen:
    """The record of a piece of work while it is traced. since: when the driver got the work, in time.perf_counter.

    stall, span: timed events around a wait for copies before the work, and around the work. copies: the copies it waited for.
    behind: the work that a copy was put behind, as (stream, what). held: the host's work that held this work back. ran: the
    finished record, once the work has landed. clock: of the GPU whose events these are, None for that of the reporter.
    """

    stream: str
    what: object
    since: float = 0.0
    stall: tuple[int, ...] = ()
    span: tuple[int, ...] = ()
    copies: tuple[Seen, ...] = ()
    behind: tuple[str, object] | None = None
    held: Ran | None = None
    ran: Ran | None = None
    clock: GpuClock | None = None


class GpuClock:
    """GPU times on the host's clock. All streams of a device share one clock, so their times can be compared.

    CUDA gives no time between events of two GPUs. Their clocks differ by what the host takes to see the first work land.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        #: a timed event that is kept, and its host time
        self._origin: tuple[int, float] | None = None

    def place(self, span: tuple[int, ...]) -> tuple[tuple[int, ...], float, float]:
        """Return the timers that are free for reuse, and when the work that just landed began and ended.

        The clock keeps one timer as its origin. When it takes one of this work's timers, it returns the old origin in its
        place.
        """
        start, end = span
        lasted_s = self._driver.elapsed_s(start, end)
        if self._origin is None:
            self._origin = start, time.perf_counter() - lasted_s
            return (end,), self._origin[1], self._origin[1] + lasted_s
        timer, at = self._origin
        passed_s = self._driver.elapsed_s(timer, start)
        if passed_s > _FAR_S:
            self._origin, span = (start, at + passed_s), (timer, end)
        return span, at + passed_s, at + passed_s + lasted_s

    @property
    def is_set(self) -> bool:
        """Whether any work has been placed."""
        return self._origin is not None

    def at(self, timer: int) -> float:
        """Return the host time of a timed event that has happened. Valid once the clock is set."""
        assert self._origin is not None
        return self._origin[1] + self._driver.elapsed_s(self._origin[0], timer)

    def close(self) -> None:
        """Free the origin; no work is timed any more."""
        if self._origin is not None:
            self._driver.bind()
            self._driver.destroy_event(self._origin[0])
            self._origin = None


class CudaTrace:
    """A reporter that tells `trace` about one stream's work, in the order in which it lands."""

    def __init__(self, stream: str, clock: GpuClock, trace: Recorder) -> None:
        self._stream = stream
        self._clock = clock
        self._trace = trace
        self._ended = 0.0

    def landed(self, seen: Seen) -> None:
        """Report landed work with its times. The timed events that are free for reuse stay in `seen`."""
        stall_ended = self._clock.at(seen.stall[1]) if seen.stall and self._ended else 0.0
        stall_began = self._clock.at(seen.stall[0]) if stall_ended else 0.0
        seen.span, began, ended = self._clock.place(seen.span)
        verb = "copy" if isinstance(seen.what, Tile) else "work"
        seen.ran = Ran(self._stream, self._stream, verb, seen.what, 0.0, began, ended, seen.behind)
        self._trace.put(seen.ran)
        if isinstance(seen.what, Operation):
            held, idle_s = seen.held, min(seen.since, began) - self._ended
            if held is not None and isinstance(held.what, Tile) and self._ended and idle_s > 0:
                self._stalled(seen, self._ended, self._ended + idle_s, held)
            copy = max(self._ran(seen.copies), key=lambda copy: copy.ended, default=None)
            if copy is not None and stall_ended > stall_began:
                self._stalled(seen, stall_began, stall_ended, copy)
        seen.copies, self._ended = (), ended

    def _stalled(self, seen: Seen, began: float, ended: float, copy: Ran) -> None:
        self._trace.put(Stalled(self._stream, began, ended, ended - began, seen.what, seen.since, copy))

    def _ran(self, copies: Sequence[Seen]) -> list[Ran]:
        """Return the records of copies that have happened, even if the thread that sees them land has not got to them yet."""
        found = [copy.ran for copy in copies if copy.ran is not None]
        for copy in copies:
            clock = copy.clock or self._clock
            if copy.ran is None and len(copy.span) == 2 and clock.is_set:
                began, ended = map(clock.at, copy.span)
                found.append(Ran(copy.stream, copy.stream, "copy", copy.what, 0.0, began, ended, copy.behind))
        return found
