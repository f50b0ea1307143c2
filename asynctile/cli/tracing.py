"""The trace of a run, --trace and --trace-steps: when it starts and ends, and what is said when it cannot continue.

Covers `Tracing`, and `check_path`, which refuses a path before any work. asynctile/measure/trace.py says what a trace shows. A
trace never stops the run: if its disk is full or its folder gone, a note says so and the run goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from asynctile import Engine
from asynctile.cli.options import Options
from asynctile.storage.sizes import format_size

__all__ = ["Tracing", "check_path"]


def check_path(path: str | None) -> None:
    """Raise ValueError for a --trace path that exists or is in a missing folder. None: there is no trace."""
    if path is not None and os.path.lexists(path):
        raise ValueError(f"--trace {path} exists already; name another file, or remove it")
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ValueError(f"--trace {path}: the folder of this file does not exist; create it, or name another file")


class Tracing:
    """Traces the steps that `options` name, or everything from `begin` to `end` if they name none. note: shows a sentence."""

    def __init__(self, engine: Engine, options: Options, note: Callable[[str], None]) -> None:
        assert options.trace is not None
        self._engine, self._note = engine, note
        self._path = options.trace
        self._steps = options.trace_steps
        self._goes_on = self._was = False

    async def begin(self) -> None:
        """Start the trace before any work, unless steps were named. OSError if the file cannot be written."""
        if self._steps is None:
            try:
                await asyncio.to_thread(self._engine.start_trace, self._path)
            except OSError as error:
                raise OSError(error.errno, error.strerror, f"--trace {self._path}") from error
            self._goes_on = self._was = True

    async def before(self, step: int) -> None:
        """Start the trace if this step is the first to be traced."""
        if self._steps is None or self._was or not self._steps[0] <= step <= (self._steps[1] or step):
            return
        self._was = True
        try:
            await asyncio.to_thread(self._engine.start_trace, self._path)
            self._goes_on = True
        except OSError as error:
            self._note(f"--trace {self._path}: {error.strerror}; the run goes on without a trace")

    async def behind(self, step: int) -> None:
        """End the trace if this step was the last to be traced, or if the trace failed."""
        if self._goes_on and not self._engine.is_traced:
            await self._stop(f" after step {step}, and the run goes on")
        elif self._goes_on and self._steps is not None and self._steps[1] is not None and step >= self._steps[1]:
            await self._stop("")

    async def end(self) -> None:
        """End the trace when the run is over, well or not."""
        if self._goes_on:
            await self._stop("")
        elif not self._was:
            self._note(f"--trace {self._path} was not written: the run did none of the steps of --trace-steps")

    async def _stop(self, when: str) -> None:
        self._goes_on = False
        try:
            done = await asyncio.to_thread(self._engine.stop_trace)
        except OSError as error:
            self._note(f"--trace {self._path} ended{when}: {error.strerror or error}")
            return
        lost = f"; {done.lost:,} more were lost because the disk was too slow" if done.lost else ""
        self._note(f"traced {done.events:,} events, {format_size(done.nbytes)}, to {self._path}: open it in ui.perfetto.dev or "
                   f"chrome://tracing{lost}")
