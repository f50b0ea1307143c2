"""A trace while it is recorded: streams tell, a thread writes. What viewers show of it is trace_events.py's.

The thread takes what the streams have told (streams/recorder.py) some times a second, so nothing grows but the file. Where the
disk takes no more the trace ends, and the work that was looked at goes on.
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

#: How often the thread looks, seconds, and how many messages it writes at once.
_PERIOD_S, _AT_ONCE = 0.1, 2048
#: How long whoever ends a trace waits for its disk, seconds.
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace that is complete. path: None where it has no name yet. events: spans and what belongs to them, lost: pieces of
    work that are missing since the disk was too slow. nbytes: of the file.
    """

    path: str | None
    events: int
    lost: int
    nbytes: int


class Trace:
    """Records from its creation on. path: None for a file without a name, which the thread makes, so that a loop may begin such
    a trace, and `copy_to` names. With a name this blocks, and OSError says that there can be no such file.

    memory: bytes in use by tier, asked for from the thread. error: why it came to an end by itself, None else.
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
        """These tell it what they do."""
        for stream in streams:
            stream.trace = self.recorder
        self._streams += streams

    def stop(self) -> TraceSummary:
        """Record no more and write what was recorded. Blocks; OSError if the file is not whole, which says why."""
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
        """What was recorded so far, in a file. Blocks; OSError if it cannot be, ValueError for the trace's own."""
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
        """The thread."""
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
            logger.warning("the trace %s has come to an end, and what was traced goes on: %s", self.path or "", self.error)

    def _write_all(self) -> None:
        """What waits now."""
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
