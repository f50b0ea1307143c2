"""Starting, stopping and writing the traces of an engine. How they are recorded is in measure/trace.py."""

from __future__ import annotations

import os

from asynctile.measure.trace import Trace, TraceSummary
from asynctile.share import Share


class Traced(Share):
    """The share that can be traced: the engine itself. A trace holds everything that runs on its devices."""

    def start_trace(self, path: str | os.PathLike[str] | None = None) -> None:
        """Record from now on what every stream runs and waits for, to be viewed in Perfetto or chrome://tracing.

        path: a JSON array that grows while work goes on and can be opened at any moment. None: a file without a name, for
        `write_trace`. No program is played while a trace goes on; results are the same. When the disk is full the trace ends
        with a warning in the log, and work goes on. From any thread; with a path this blocks while the file is created.
        ValueError if a trace goes on already, unless neither has a path: then recording begins anew. OSError if the file cannot
        be created.
        """
        self._life.check_process()
        name = None if path is None else os.fspath(path)
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        before = self._life.trace
        if before is not None and before.goes_on:
            if name is not None or before.path is not None:
                raise ValueError(f"a trace of this engine goes on, in {before.path or 'a file without a name'}: call "
                                 "stop_trace() before another start_trace()")
            before.stop()
        self._life.trace = Trace(self._life.streams(), name, self._memory_in_use)

    def stop_trace(self) -> TraceSummary:
        """End the trace and complete its file. Blocks until the file is written: call it in a thread beside a running loop.

        ValueError if no trace goes on. OSError, with the cause, if the trace ended by itself before.
        """
        self._life.check_process()
        trace = self._life.trace
        if trace is None or not (trace.goes_on or trace.error is not None):
            raise ValueError("no trace was started: call start_trace() before the work to be traced")
        try:
            return trace.stop()
        finally:
            if trace.error is not None:
                self._life.trace = None

    @property
    def is_traced(self) -> bool:
        """Whether a trace was started and has neither been stopped nor ended by itself."""
        return self._life.recorder is not None

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write everything recorded so far to another file; a trace that goes on is not ended. Blocks as `stop_trace` does.

        ValueError if no trace was started, and for the path that the trace itself is written to. OSError if the trace ended by
        itself, or if the file cannot be written.
        """
        if self._life.trace is None:
            raise ValueError("no trace was started: call start_trace() before the work to be traced")
        self._life.trace.copy_to(os.fspath(path))

    def _memory_in_use(self) -> dict[str, float]:
        """Return the bytes in use by tier; from any thread."""
        if not self.is_open:
            return {}
        now, found = self.statistics(), {}
        if now.device_memory_bytes is not None:
            found["device"] = float(now.device_used_bytes)
        found["RAM"] = float(now.host_used_bytes)
        if self._life.spill is not None:
            found["spill"] = float(now.spill_used_bytes)
        return found
