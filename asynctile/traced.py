"""Traces of an engine: started, stopped and written. How they are recorded is measure/trace.py."""

from __future__ import annotations

import os

from asynctile.measure.trace import Trace, TraceSummary
from asynctile.share import Share


class Traced(Share):
    """The share of all that runs on a device, so what it traces is everything there."""

    def start_trace(self, path: str | os.PathLike[str] | None = None) -> None:
        """Record from now on what every stream runs and what it waits for, for chrome://tracing and Perfetto.

        path: of a JSON array that grows while work goes on, and opens at any moment; without it a file that has no name, for
        `write_trace`. Nothing is played meanwhile, results are the same. Where the disk is full the trace ends, with a warning
        in the log, and work goes on. From any thread; with a path this blocks while the file is made. ValueError while a trace
        goes on that has a path, or is to get one; one without is begun anew. OSError if there can be no such file.
        """
        self.check_process()
        name = None if path is None else os.fspath(path)
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        before = self._life.trace
        if before is not None and before.goes_on:
            if name is not None or before.path is not None:
                raise ValueError(f"a trace of this engine goes on, in {before.path or 'a file without a name'}: stop_trace() "
                                 "ends it, and then another can be started")
            before.stop()
        self._life.trace = Trace(self._device.streams(), name, self._memory_in_use)

    def stop_trace(self) -> TraceSummary:
        """Record no more, and complete the file. Blocks until it is written: call it in a thread where a loop must not wait.

        ValueError if no trace goes on. OSError if the trace has come to an end before, which says why.
        """
        self.check_process()
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
        """Whether a trace goes on: it was started, and has come to no end by itself."""
        return self.recorder is not None

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write what was recorded so far to a file of its own; the trace goes on, if it does. Blocks as `stop_trace`.

        ValueError if nothing was started, and for the path that the trace is written to. OSError if it has come to an end by
        itself, or the file cannot be written.
        """
        if self._life.trace is None:
            raise ValueError("no trace was started: call start_trace() before the work to be traced")
        self._life.trace.copy_to(os.fspath(path))

    def _memory_in_use(self) -> dict[str, float]:
        """By tier, bytes; from any thread."""
        if not self.is_open:
            return {}
        now, found = self.statistics(), {}
        if now.device_memory_bytes is not None:
            found["device"] = float(now.device_used_bytes)
        found["RAM"] = float(now.host_used_bytes)
        if self._life.spill is not None:
            found["spill"] = float(now.spill_used_bytes)
        return found
