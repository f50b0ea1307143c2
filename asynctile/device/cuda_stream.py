"""A stream of a GPU, and the thread that sees its work land.

Work is handed to the driver as soon as everything it waits for has been handed over too: what is on the same GPU is ordered
there, by CUDA events between streams, and Python has no part in it. Only what a host thread has yet to do (a tile
read from the disk) holds work back here; when that is done the work is handed over by the thread that did it, and whatever
hung on it follows.

Landing: a thread a stream sleeps until a CUDA event has happened, then tells futures and host threads. It wakes for what
somebody waits for, for each graph, and otherwise for every few pieces of work. The way not taken: a driver callback into
Python, which takes the interpreter's lock inside the driver and can deadlock.

Long because handing over and landing work on the same queue, counters and timers, under one lock.
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
    """recorded: the driver's event behind the work, while that is on its way; 0 for work that failed before it was handed over.

    number: its place in the stream, 0 until it was handed over, or failed. by_itself: it is seen to land before what follows.
    heirs: tasks that wait for it to be handed over. seen: while a trace is recorded, what that is told; None without, and for
    work that failed before it was handed over.
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
    """A runner (asynctile/streams/event.py). handle: the driver's stream. stall_s: seconds in which it waited for copies while
    a trace was recorded: a mark costs the host as much as a launch, and in a graph there is no place for one.

    lock: shared with every stream whose work waits for this one's, on the GPU or on the host. clock: of the GPU.
    """

    def __init__(self, name: str, driver: Driver, lock: threading.Lock, clock: GpuClock) -> None:
        self.name = name
        self.handle = driver.new_stream()
        self.ending: Ran | None = None
        self._clock = clock
        self._tracing: tuple[Recorder, CudaTrace] | None = None
        self.finished = 0
        self.waiting: set[StreamTask] = set()
        self.stall_s = 0.0
        self._driver = driver
        self._lock = lock
        self._more = threading.Condition(lock)
        self._flying: deque[CudaEvent] = deque()
        #: the driver's events that nothing uses now, and those with times
        self._spare: list[int] = []
        self._timers: list[int] = []
        #: by stream, the last of its work that this one is already ordered behind
        self._behind: dict[CudaStream, int] = {}
        self._number = 0
        self._landed_at = time.perf_counter()
        self._closing = self._left = False
        #: work that became ready while a graph is written down on this stream, which it must not get into
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
        """The piece of work that lands next, as the watchdog wants to know it."""
        with self._lock:
            if not self._flying:
                return {}
            return {self.name: (StreamTask(self, self._flying[0], _nothing, ()), self._landed_at)}

    @property
    def depth(self) -> tuple[int, int]:
        """What runs is what the driver has been handed."""
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
        """Hand work(*args), which enqueues on `handle`, to the driver behind `waits`, which must go well, and `after`.

        by_itself: it takes long, so it is seen to land as soon as it has, though nobody waits for it yet. DeviceError once the
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
        """Hand nothing over from now on: other jobs' work may become ready at any moment, by host threads."""
        with self._lock:
            self._held = []

    def go_on(self) -> None:
        """Hand over what was held."""
        with self._lock:
            held, self._held = self._held or [], None
            for task in held:
                self._hand_over(task)

    def becomes_ready(self, task: StreamTask, by: object) -> None:
        """What the task waited for on the host is done, or was handed over."""
        held = None if self._tracing is None else ending(by)
        self._hand_over(task, held)

    def fed(self, task: StreamTask, by: object) -> None:
        pass  # what waits for copies is measured on the GPU, if at all

    def close(self, patience_s: float | None = None) -> None:
        """Let everything land, then end. patience_s: wait at most that long; what hangs is left behind, and what waits for it
        is not handed over any more: the memory that it works on goes now.
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
        """Give the driver's stream back, after `close` and what else was done with it; one that hangs stays."""
        if self._left:
            return
        self._driver.bind()
        self._driver.destroy_stream(self.handle)
        for spare in (*self._spare, *self._timers):
            self._driver.destroy_event(spare)

    def _hand_over(self, task: StreamTask, held: Ran | None = None) -> None:
        """Under the lock: give a task to the driver, and every task that hung on that. held: what did that, for a trace."""
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
        """Under the lock: enqueue on the driver's stream, or fail. Either way it lands, in order."""
        for before in task.waits:
            event.error = event.error or before.error
        if self._left:
            event.error = event.error or DeviceError(f"stream {self.name} was closed before this could run")
        if event.error is None:
            try:
                self._driver.bind()
                if self._tracing is not None:
                    event.seen = Seen(self.name, event.what, time.perf_counter(), held=held)
                self._order_behind(task, event)
                if event.seen is not None:
                    event.seen.span = (self._stamp(),)
                task.work(*task.args)
                if event.seen is not None:
                    event.seen.span += (self._stamp(),)
                event.recorded = self._mark()  # last: what has landed has stamped its times
            except BaseException as error:  # the event carries it to whoever waits
                event.error = error
                self._give_timers(event)  # with no mark behind them, who could tell when they have happened?
        self._number += 1
        event.number = self._number
        if not self._flying:
            self._landed_at = time.perf_counter()
            self._more.notify()
        self._flying.append(event)

    def _order_behind(self, task: StreamTask, event: CudaEvent) -> None:
        """Make the driver's stream wait for what other streams have yet to do."""
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
        """The thread: see work land, in order, until closed."""
        self._driver.bind()
        while (target := self._next()) is not None:
            error: BaseException | None = None
            try:
                if target.recorded:
                    self._driver.synchronize(target.recorded)
            except Exception as failure:
                error = _failed(target, failure)
            with self._lock:
                landed = self._take(target, error)
            for event in landed:
                event.wake()

    def _next(self) -> CudaEvent | None:
        """The work to sleep until: the first that is awaited or failed, or one a few further on; None when closed."""
        with self._lock:
            while not self._flying:
                if self._left or (self._closing and not self.waiting):
                    return None
                self._more.wait()
            before = self._flying[0]
            for index, event in enumerate(self._flying):
                if not event.recorded and before.recorded:
                    return before  # what failed has none: what is in front of it lands first
                if event.is_awaited or event.by_itself or not event.recorded or index == BATCH - 1:
                    return event
                before = event
            return before

    def _take(self, target: CudaEvent, error: BaseException | None) -> list[CudaEvent]:
        """Under the lock: everything up to `target` has landed."""
        landed = []
        self._landed_at = time.perf_counter()
        while self._flying and self._flying[0].number <= target.number:
            landed.append(self._flying.popleft())
        try:
            if error is None:
                self._read_timers(landed)
        except Exception as failure:  # not this thread's end, on which all jobs hang
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
        """Of what has landed."""
        for event in landed:
            if event.seen is not None and event.seen.stall:
                self.stall_s += self._driver.elapsed_s(*event.seen.stall)
            if event.seen is not None and self._tracing is not None:
                self._tracing[1].landed(event.seen)


def _hang_on(task: StreamTask) -> None:
    """Under the lock: count what has not been handed over yet, or, of the host's own work, is not done yet."""
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
    """What a task that only stands for an event runs."""
