"""A trace while it is recorded: streams put messages in a queue, and a thread writes them. trace_events.py makes the events.

The thread empties the queue (streams/recorder.py) several times a second, so only the file grows. When the disk takes
no more, the trace ends and the traced work goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asynctile.errors import DeviceError
from asynctile.measure.trace_events import TraceEvents
from asynctile.measure.trace_file import TraceFile
from asynctile.streams.event import TracedRunner
from asynctile.streams.recorder import Flush, Recorder
from asynctile.threads import start

logger = logging.getLogger(__name__)

#: Seconds between the thread's looks at the queue, and most messages that it writes at once.
_PERIOD_S, _AT_ONCE = 0.1, 2048
#: Seconds for which `stop` waits for the disk.
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A complete trace.

    path: None where it has no name yet.
    events: number of spans and of the events that belong to them.
    lost: pieces of work that are missing because the disk was too slow.
    nbytes: size of the file.
    """

    path: str | None
    events: int
    lost: int
    nbytes: int


class Trace:
    """A trace that records from its creation on.

    path: of the file. With a path, creation blocks, and raises OSError if the file cannot be made. None for a file
        without a name, which the thread makes: an event loop may begin such a trace, and `copy_to` gives it a name
        later.
    memory: returns bytes in use by tier; called by the thread.
    error: why the trace ended by itself; None otherwise.
    """

    def __init__(self, streams: Sequence[TracedRunner], path: str | None, memory: Callable[[], Mapping[str, float]]) -> None:
        self.path = path
        self.recorder = Recorder()
        self.error: OSError | None = None
        self._file = None if path is None else TraceFile(path)
        self._events = TraceEvents(time.perf_counter())
        self._memory = memory
        self._written = self._told_lost = 0
        self._streams: list[TracedRunner] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="asynctile-trace", daemon=True)
        try:
            start(self._thread)
        except DeviceError:
            if self._file is not None:
                self._file.close()
            raise
        self.attach(streams)

    @property
    def goes_on(self) -> bool:
        return not self._stop.is_set() and self.error is None

    def attach(self, streams: Sequence[TracedRunner]) -> None:
        """Trace these streams from now on."""
        for stream in streams:
            stream.trace = self.recorder
        self._streams += streams

    def stop(self) -> TraceSummary:
        """Stop recording and write the rest. Blocks. OSError, which says why, if the file is not complete."""
        self._detach()
        self._stop.set()
        self.recorder.wake.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the trace {self.path or ''} is not complete: its disk has not answered for {PATIENCE_S:g} s")
        if self.error is not None:
            raise self.error
        assert self._file is not None
        if self.path is not None:
            self._file.close()
        return TraceSummary(self.path, self._written, self.recorder.lost, self._file.nbytes)

    def copy_to(self, path: str) -> None:
        """Copy what was recorded so far to a file. Blocks. OSError if that fails, ValueError for the trace's own file."""
        if self._thread.is_alive():
            flush = Flush(threading.Event())
            self.recorder.put(flush)
            self.recorder.wake.set()
            while self._thread.is_alive() and not flush.written.wait(_PERIOD_S):
                pass
        if self.error is not None:
            raise self.error
        assert self._file is not None
        self._file.copy_to(path)

    def _detach(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            if stream.trace is self.recorder:
                stream.trace = None

    def _write(self) -> None:
        """Make the file and write messages until `stop`. Runs in the thread."""
        try:
            if self._file is None:
                self._file = TraceFile(None)
            while not self._stop.is_set():
                self.recorder.wake.wait(_PERIOD_S)
                self.recorder.wake.clear()
                self._write_all()
            self._write_all()
            self._append(self._events.end())
        except Exception as error:
            self._detach()
            self.error = error if isinstance(error, OSError) else OSError(f"the trace is not complete: {error!r}")
            logger.warning("the trace %s has ended early, and the traced work goes on: %s", self.path or "", self.error)

    def _write_all(self) -> None:
        """Write the messages that wait now."""
        is_idle = True
        while batch := self.recorder.take(_AT_ONCE):
            is_idle = False
            lines: list[str] = []
            for message in batch:
                self._events.add(message, lines)
            self._append(lines)
            for message in batch:
                if isinstance(message, Flush):
                    message.written.set()
        now, lost = time.perf_counter(), self.recorder.lost
        if lost > self._told_lost:
            self._append([self._events.lost(lost - self._told_lost, now)])
            self._told_lost = lost
        if not is_idle and (memory := self._memory()):
            self._append([self._events.counters("memory in use", memory, now)])

    def _append(self, events: Sequence[str]) -> None:
        assert self._file is not None
        self._file.append(events)
        self._written += len(events)
