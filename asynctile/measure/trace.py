"""A trace of what every stream ran and when, as a file that chrome://tracing and Perfetto show."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence

from asynctile.streams.event import Runner, Span


class Trace:
    """Records from its creation on. Each stream appends to its own list, so recording needs no lock."""

    def __init__(self, streams: Sequence[Runner]) -> None:
        self._start = time.perf_counter()
        self._spans: list[list[Span]] = []
        for stream in streams:
            stream.trace = []
            self._spans.append(stream.trace)

    def write(self, path: str | os.PathLike[str]) -> None:
        """One complete event ("X") for each piece of work; times in microseconds."""
        events = [
            {
                "name": work, "ph": "X", "pid": 0, "tid": stream,
                "ts": round((start - self._start) * 1e6, 1), "dur": round((end - start) * 1e6, 1),
            }
            for spans in self._spans
            for stream, work, start, end in spans
        ]  # fmt: skip
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))  # dump writes a piece a number
        except OSError as error:  # a write does not say where, nor does a close
            error.filename = os.fspath(path)
            raise
