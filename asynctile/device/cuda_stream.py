"""A stream of a GPU, and the thread that sees its work land.

The stream hands work to the driver as soon as the driver has everything that the work waits for. CUDA events order work of one
GPU and of several, without Python. Only unfinished work of a host thread (a tile read from the disk) holds work back here. When
the host thread finishes, it hands the work over itself, and then the work that waited for that.

Landing: one thread per stream sleeps until a CUDA event has happened, then tells futures and host threads. It wakes for work
that somebody awaits, for each graph, and otherwise once for every few pieces of work. The way not taken: a driver callback into
Python, which takes the interpreter's lock inside the driver and can deadlock.

Long because handing over and landing share one queue, its counters and its timers, under one lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asynctile.device.cuda_trace import CudaTrace, GpuClock, Seen
from asynctile.device.driver import Driver
from asynctile.errors import DeviceError
from asynctile.streams.event import StreamEvent, StreamEvents, StreamTask
from asynctile.streams.recorder import Ran, Recorder
from asynctile.streams.stall import LEFT_BEHIND
from asynctile.streams.starving import ending
from asynctile.threads import start

logger = logging.getLogger(__name__)

#: Pieces of work that land together when nobody waits for one of them.
BATCH = 8


class CudaEvent(StreamEvent):
    """The event of one piece of work on a GPU.

    recorded: the driver's event behind the work while the work is in flight, 0 if the work failed before it was handed over.
    number: its place in the stream, 0 until the work was handed over or failed. by_itself: its landing is seen before later
    work lands. heirs: tasks that wait for it to be handed over. seen: the record for a trace, None without a trace or for work
    that failed before it was handed over.
    """

    __slots__ = ("recorded", "number", "heirs", "seen", "by_itself")
    stream: CudaStream

    def __init__(self, stream: CudaStream, is_copy: bool, what: object, by_itself: bool) -> None:
        super().__init__(is_copy, what, stream)
        self.by_itself = by_itself
        self.recorded = self.number = 0
        self.heirs: list[StreamTask] = []
        self.seen: Seen | None = None


class CudaStream:
    """A runner (asynctile/streams/event.py) on a stream of the driver, `handle`.

    stall_s: seconds in which the stream waited for copies while a trace was recorded. It is not measured otherwise: a timed
    event costs the host as much as a launch, and a graph has no place for one. lock: shared with every stream whose work waits
    for this one's, on a GPU or on the host. clock: the GPU's clock. check: raises the error of another GPU of the engine whose
    results this one's work may have read.
    """

    def __init__(
        self, name: str, driver: Driver, lock: threading.Lock, clock: GpuClock, check: Callable[[], None]
    ) -> None:
        self.name = name
        self.handle = driver.new_stream()
        self.ending: Ran | None = None
        self._clock = clock
        self._tracing: tuple[Recorder, CudaTrace] | None = None
        self.finished = 0
        self.waiting: set[StreamTask] = set()
        self.stall_s = 0.0
        self._driver = driver
        self._check = check
        self._lock = lock
        self._more = threading.Condition(lock)
        self._flying: deque[CudaEvent] = deque()
        #: spare events of the driver, without times and with times
        self._spare: list[int] = []
        self._timers: list[int] = []
        #: for each other stream, the number of its last work that this stream is already ordered behind
        self._behind: dict[CudaStream, int] = {}
        self._number = 0
        self._landed_at = time.perf_counter()
        self._closing = self._left = False
        #: work that became ready during a capture of this stream and must stay out of the graph; None without a capture
        self._held: list[StreamTask] | None = None
        self._thread = threading.Thread(target=self._land, name=f"asynctile-{name}", daemon=True)

    @property
    def trace(self) -> Recorder | None:
        return None if self._tracing is None else self._tracing[0]

    @trace.setter
    def trace(self, trace: Recorder | None) -> None:
        self._tracing = None if trace is None else (trace, CudaTrace(self.name, self._clock, trace))

    @property
    def running(self) -> Mapping[str, tuple[StreamTask, float]]:
        """The piece of work that lands next, for the watchdog."""
        with self._lock:
            if not self._flying:
                return {}
            return {self.name: (StreamTask(self, self._flying[0], _nothing, ()), self._landed_at)}

    @property
    def depth(self) -> tuple[int, int]:
        """Number of waiting tasks, and of tasks that the driver has and that have not landed."""
        return len(self.waiting), len(self._flying)

    def start(self) -> None:
        start(self._thread)

    def enqueue(
        self,
        waits: StreamEvents,
        work: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        after: StreamEvents = (),
        is_copy: bool = False,
        what: object = None,
        by_itself: bool = False,
    ) -> CudaEvent:
        """Hand work(*args), which enqueues on `handle`, to the driver behind `waits`, which must succeed, and `after`.

        by_itself: the work takes long, so its landing is seen at once even if nobody awaits it yet. Raises DeviceError once the
        stream is closed.
        """
        event = CudaEvent(self, is_copy, what, by_itself)
        task = StreamTask(self, event, work, args)
        with self._lock:
            if self._closing:
                raise DeviceError(f"stream {self.name} is closed: the engine was closed while it worked")
            task.waits, task.after = waits, after
            _hang_on(task)
            if task.waiting:
                self.waiting.add(task)
            else:
                self._hand_over(task)
        return event

    def hold(self) -> None:
        """Hold back all work from now on: host threads may make other jobs' work ready at any moment."""
        with self._lock:
            self._held = []

    def go_on(self) -> None:
        """Hand over the work that was held."""
        with self._lock:
            held, self._held = self._held or [], None
            for task in held:
                self._hand_over(task)

    def becomes_ready(self, task: StreamTask, by: object) -> None:
        """Hand over a task whose last wait on the host has ended."""
        held = None if self._tracing is None else ending(by)
        self._hand_over(task, held)

    def fed(self, task: StreamTask, by: object) -> None:
        pass  # waits for copies are measured on the GPU, if at all

    def close(self, patience_s: float | None = None) -> None:
        """Let everything land, then end.

        patience_s: the longest wait. Work that still hangs then is left behind, and tasks that wait for it are not handed over
        any more, because their memory is freed now.
        """
        with self._lock:
            self._closing = True
            self._more.notify_all()
        if self._thread.ident is not None:
            self._thread.join(patience_s)
            if self._thread.is_alive():
                logger.warning(LEFT_BEHIND, self._thread.name)
                with self._lock:
                    self._left = True
                    self._more.notify_all()

    def destroy(self) -> None:
        """Destroy the driver's stream, after `close` and after its other uses. A stream that hangs stays."""
        if self._left:
            return
        self._driver.bind()
        self._driver.destroy_stream(self.handle)
        for spare in (*self._spare, *self._timers):
            self._driver.destroy_event(spare)

    def _hand_over(self, task: StreamTask, held: Ran | None = None) -> None:
        """Give a task to the driver, and then every task that waited for it. Call under the lock.

        held: the host's work that held the task back, for a trace.
        """
        ready = deque([task])
        while ready:
            task = ready.popleft()
            stream, event = task.stream, task.event
            assert isinstance(stream, CudaStream) and isinstance(event, CudaEvent)
            if stream._held is not None:
                stream._held.append(task)
                continue
            stream.waiting.discard(task)
            stream._submit(task, event, held)
            task.waits = task.after = task.args = ()
            heirs, event.heirs = event.heirs, []
            for heir in heirs:
                heir.waiting -= 1
                if not heir.waiting:
                    ready.append(heir)

    def _submit(self, task: StreamTask, event: CudaEvent, held: Ran | None) -> None:
        """Enqueue a task on the driver's stream, or fail it. Either way it lands in order. Call under the lock."""
        for before in task.waits:
            event.error = event.error or before.error
        if self._left:
            event.error = event.error or DeviceError(f"stream {self.name} was closed before this could run")
        if event.error is None:
            try:
                self._driver.bind()
                if self._tracing is not None:
                    event.seen = Seen(self.name, event.what, time.perf_counter(), held=held, clock=self._clock)
                self._order_behind(task, event)
                if event.seen is not None:
                    event.seen.span = (self._stamp(),)
                task.work(*task.args)
                if event.seen is not None:
                    event.seen.span += (self._stamp(),)
                event.recorded = self._mark()  # last, so that work that has landed has stamped its times
            except BaseException as error:  # the event carries it to everyone who waits
                event.error = error
                self._give_timers(event)  # with no event recorded behind them, nobody can tell when they have happened
        self._number += 1
        event.number = self._number
        if not self._flying:
            self._landed_at = time.perf_counter()
            self._more.notify()
        self._flying.append(event)

    def _order_behind(self, task: StreamTask, event: CudaEvent) -> None:
        """Make the driver's stream wait for unfinished work of other streams."""
        last: dict[CudaStream, CudaEvent] = {}
        for before in (*task.waits, *task.after):
            if before.done or not isinstance(before, CudaEvent) or before.stream is self or not before.recorded:
                continue
            known = last[before.stream].number if before.stream in last else self._behind.get(before.stream, 0)
            if before.number > known:
                last[before.stream] = before
        if not last:
            return
        seen = event.seen
        if seen is not None:
            copies = [before.seen for before in last.values() if before.is_copy]
            if event.is_copy:
                seen.behind = next((before.stream.name, before.what) for before in last.values())
            elif copies:
                seen.copies, seen.stall = tuple([copy for copy in copies if copy is not None]), (self._stamp(),)
        for stream, before in last.items():
            self._driver.wait(self.handle, before.recorded)
            self._behind[stream] = before.number
        if seen is not None and seen.stall:
            seen.stall += (self._stamp(),)

    def _mark(self) -> int:
        if not self._spare:
            self._spare.append(self._driver.new_event())
        self._driver.record(self._spare[-1], self.handle)
        return self._spare.pop()

    def _stamp(self) -> int:
        if not self._timers:
            self._timers.append(self._driver.new_event(timed=True))
        self._driver.record(self._timers[-1], self.handle)
        return self._timers.pop()

    def _give_timers(self, event: CudaEvent) -> None:
        if event.seen is not None:
            self._timers += (*event.seen.stall, *event.seen.span)
            event.seen.stall = event.seen.span = ()
            event.seen = None

    def _land(self) -> None:
        """Run in the thread: see work land, in order, until the stream is closed."""
        self._driver.bind()
        while (target := self._next()) is not None:
            error: BaseException | None = None
            try:
                if target.recorded:
                    self._driver.synchronize(target.recorded)
                    self._check()
            except Exception as failure:
                error = _failed(target, failure)
            with self._lock:
                landed = self._take(target, error)
            for event in landed:
                event.wake()

    def _next(self) -> CudaEvent | None:
        """Wait until work is in flight, and return the piece whose end the thread sleeps for next.

        That is the first piece in flight that somebody awaits or that is marked by_itself. If there is none, it is the
        BATCH-th, or the last if fewer are in flight. If a failed piece comes first, which has no driver event, return the
        piece in front of it, so that this one lands first. Return None if nothing is in flight and the stream is closed.
        """
        with self._lock:
            while not self._flying:
                if self._left or (self._closing and not self.waiting):
                    return None
                self._more.wait()
            before = self._flying[0]
            for index, event in enumerate(self._flying):
                if not event.recorded and before.recorded:
                    return before  # failed work has no event to sleep on: the work in front of it lands first
                if event.is_awaited or event.by_itself or not event.recorded or index == BATCH - 1:
                    return event
                before = event
            return before

    def _take(self, target: CudaEvent, error: BaseException | None) -> list[CudaEvent]:
        """Land everything up to `target`, and return it. Call under the lock."""
        landed = []
        self._landed_at = time.perf_counter()
        while self._flying and self._flying[0].number <= target.number:
            landed.append(self._flying.popleft())
        try:
            if error is None:
                self._read_timers(landed)
        except Exception as failure:  # must not end this thread: all jobs depend on it
            error = _failed(target, failure)
        for event in landed:
            event.error = event.error or error
            self.finished += 1
            self.ending = None if event.seen is None else event.seen.ran
            self._give_timers(event)
            if event.recorded:
                self._spare.append(event.recorded)
            event.finish(self)
        return landed

    def _read_timers(self, landed: Sequence[CudaEvent]) -> None:
        """Read the timers of landed work, for `stall_s` and the trace."""
        for event in landed:
            if event.seen is not None and event.seen.stall:
                self.stall_s += self._driver.elapsed_s(*event.seen.stall)
            if event.seen is not None and self._tracing is not None:
                self._tracing[1].landed(event.seen)


def _hang_on(task: StreamTask) -> None:
    """Make a task wait for GPU work that was not handed over yet, and for host work that is not done. Call under the lock."""
    for before in (*task.waits, *task.after):
        if isinstance(before, CudaEvent) and not before.number:
            before.heirs.append(task)
            task.waiting += 1
    task.hang_on(_of_the_host(task.waits), _of_the_host(task.after))


def _of_the_host(events: StreamEvents) -> list[StreamEvent]:
    return [event for event in events if not isinstance(event, CudaEvent)]


def _failed(event: CudaEvent, failure: Exception) -> DeviceError:
    return DeviceError(f"the GPU failed at or before {event.what or 'a copy'}: {failure}")


def _nothing() -> None:
    """Do nothing: the work of a task that only stands for an event."""
