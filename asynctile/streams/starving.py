"""Stalls of a stream of worker threads, for a trace: why its threads had nothing to run.

A stall is time in which a thread was idle, no work was ready or kept back, and an operation waited for a copy. It ends
in one of two ways:

- Such an operation becomes ready. The stall is reported for this operation and the copy that came last.
- Other work becomes ready. The stall is reported for the oldest operation that still waits for a copy.

Everything here is called under the lock of the streams. `Stream.waiting_s` counts seconds without a trace, too.
"""

from __future__ import annotations

from typing import cast

from asynctile.streams.event import StreamEvent, StreamTask, TaskRunner
from asynctile.streams.recorder import Ran, Recorder, Stalled


class Starving:
    """The operations of `stream` that wait for copies, and the stall that is going on."""

    def __init__(self, stream: str, trace: Recorder) -> None:
        self._stream = stream
        self._trace = trace
        #: oldest first
        self._tasks: dict[StreamTask, None] = {}
        self._began = self._ended = self._idle_s = 0.0
        #: the last stall was reported for the operation that becomes ready now
        self._is_told = False

    def add(self, task: StreamTask) -> None:
        """Add a task that waits for a copy. Copies are left out: they block only the operations that wait for them."""
        if not task.event.is_copy:
            self._tasks[task] = None

    def goes_on(self, began: float, ended: float, idle: int) -> None:
        """Extend the stall: between these times `idle` threads had nothing to run."""
        if not self._idle_s:
            self._began = began
        self._ended = ended
        self._idle_s += idle * (ended - began)

    def fed(self, task: StreamTask, copy: Ran | None) -> None:
        """Note that the last copy that `task` waited for has ended. If the task is ready now, report the stall."""
        self._tasks.pop(task, None)
        if self._idle_s and not task.waiting and copy is not None and not task.event.is_copy:
            self._tell(task, copy)
            self._is_told = True

    def ends(self) -> None:
        """End the stall because there is work to run. Report it unless `fed` just did."""
        is_told, self._is_told = self._is_told, False
        if is_told or not self._idle_s:
            self._idle_s = 0.0
            return
        task = next(iter(self._tasks), None)
        copy = None if task is None else next((event for event in (*task.waits, *task.after) if _is_missing(event)), None)
        if task is not None and copy is not None:
            self._tell(task, _so_far(copy))
        self._idle_s = 0.0

    def _tell(self, task: StreamTask, copy: Ran) -> None:
        self._trace.put(Stalled(self._stream, self._began, self._ended, self._idle_s, task.event.what, task.since, copy))
        self._idle_s = 0.0


def _is_missing(event: StreamEvent) -> bool:
    return event.is_copy and not event.done


def _so_far(event: StreamEvent) -> Ran:
    """Return a copy that has not ended, as far as it has come."""
    runner = cast(TaskRunner, event.stream)
    for thread, (piece, began) in list(runner.running.items()):
        if piece.event is event:
            return Ran(runner.name, thread, "", event.what, began, began, 0.0, None)
    behind = None
    for piece in runner.waiting:
        if piece.event is event:
            behind = next(((_name(before), before.what) for before in (*piece.waits, *piece.after) if not before.done), None)
            break
    return Ran(runner.name, runner.name, "", event.what, 0.0, 0.0, 0.0, behind)


def ending(by: object) -> Ran | None:
    """Return the work that `by` finishes now if `by` is a traced stream, else None."""
    found: Ran | None = getattr(by, "ending", None)
    return found


def what_ended(by: object) -> tuple[str, object] | None:
    """Return the work that `by` finishes now as (stream, what), without the work that it waited for; None if not traced."""
    found = ending(by)
    return None if found is None else (found.stream, found.what)


def _name(event: StreamEvent) -> str:
    return event.stream.name if event.stream is not None else ""
