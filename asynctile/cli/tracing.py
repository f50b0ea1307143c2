"""The trace of a run, --trace and --trace-steps: when it begins and ends, and what is said where it cannot go on.

Covers `Tracing`. What a trace shows is asynctile/measure/trace.py. A trace is beside the run: where its disk is full, or its
folder gone, that is said and the run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asynctile import Engine
from asynctile.cli.options import Options
from asynctile.storage.sizes import format_size

__all__ = ["Tracing"]


class Tracing:
    """Of the steps that `options` name; of everything from `begin` to `end` if they name none. note: says a sentence."""

    def __init__(self, engine: Engine, options: Options, note: Callable[[str], None]) -> None:
        assert options.trace is not None
        self._engine, self._note = engine, note
        self._path = options.trace
        self._steps = options.trace_steps
        self._goes_on = self._was = False

    async def begin(self) -> None:
        """Before all work. OSError if nothing can be written there."""
        if self._steps is None:
            await asyncio.to_thread(self._engine.start_trace, self._path)
            self._goes_on = self._was = True

    async def before(self, step: int) -> None:
        """A step is about to begin."""
        if self._steps is None or self._was or not self._steps[0] <= step <= (self._steps[1] or step):
            return
        self._was = True
        try:
            await asyncio.to_thread(self._engine.start_trace, self._path)
            self._goes_on = True
        except OSError as error:
            self._note(f"--trace {self._path}: {error.strerror}; nothing is traced, and the run goes on")

    async def behind(self, step: int) -> None:
        """A step is over."""
        if self._goes_on and not self._engine.is_traced:
            await self._stop(f" behind step {step}, and the run goes on")
        elif self._goes_on and self._steps is not None and self._steps[1] is not None and step >= self._steps[1]:
            await self._stop("")

    async def end(self) -> None:
        """Nothing more is to be traced: the run is over, well or not."""
        if self._goes_on:
            await self._stop("")
        elif not self._was:
            self._note(f"--trace {self._path} is not written: the run came to none of the steps that --trace-steps names")

    async def _stop(self, when: str) -> None:
        self._goes_on = False
        try:
            done = await asyncio.to_thread(self._engine.stop_trace)
        except OSError as error:
            self._note(f"--trace {self._path} ends{when}: {error.strerror or error}")
            return
        lost = f"; {done.lost:,} more were lost, since that disk was too slow" if done.lost else ""
        self._note(f"{done.events:,} events, {format_size(done.nbytes)}, are in {self._path}: for ui.perfetto.dev and "
                   f"chrome://tracing{lost}")
