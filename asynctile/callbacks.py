"""What a program of one's own is told of a run of `asynctile train`: `Callback`, the run that it is told of, and who calls.

Covers `Callback` and `Run`, which others write against, and `Callbacks`, by which session.py tells those of a run. How they are
named on a command line is cli/options.py. Who trains with a Trainer of their own needs none of it: `Trainer.run` gives reports.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asynctile.errors import AsynctileError
from asynctile.storage.documents import finish

if TYPE_CHECKING:
    from asynctile.layers.evaluation import Evaluation
    from asynctile.layers.report import StepReport

__all__ = ["Callback", "Callbacks", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that begins, or goes on. folder: its own. options, config: as run.json and the model's config.json have them.
    parameters: of the model, a count. steps: of the whole run. first_step: number of the step that comes next, 1 in a new run.
    """

    folder: Path
    options: Mapping[str, Any]
    config: Mapping[str, Any]
    parameters: int
    steps: int
    first_step: int


class Callback:
    """Write over what is wanted; here every method does nothing.

    All are plain functions, called one after another in one thread that is not the event loop's. The run waits until a call is
    back, so what is told lasts no longer than the run, and slow work belongs into a thread of one's own. An exception ends the
    run as a step that fails does, with a sentence that names the callback.
    """

    def begin(self, run: Run) -> None:
        """Before the first step and the first validation."""

    def step(self, report: StepReport) -> None:
        """Behind each step, also one that was skipped. Steps behind the checkpoint that a run goes on from come again."""

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        """Behind a validation. step: of the model it was made with, 0 before the first."""

    def saved(self, step: int, path: Path) -> None:
        """The checkpoint of a step is whole, in the folder `path`; or the best model so far, in `checkpoints/best`."""

    def end(self, status: str) -> None:
        """The last call, also if another callback or the run failed. status: "finished", "stopped" (may go on) or "failed"."""


class Callbacks:
    """Those of a run. Without any nothing is awaited, and a step costs what it did. AsynctileError if one raised."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        #: whose `begin` was called, and who must be told of the end
        self._begun: list[Callback] = []
        self._thread = ThreadPoolExecutor(1, "callbacks")  # it has no thread before the first call

    async def begin(self, run: Run) -> None:
        for callback in self._callbacks:
            self._begun.append(callback)
            await self._call(callback, "as the run began", callback.begin, run)

    async def step(self, report: StepReport) -> None:
        for callback in self._begun:
            await self._call(callback, f"at step {report.step}", callback.step, report)

    async def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        for callback in self._begun:
            await self._call(callback, f"at the validation of step {step}", callback.validation, step, evaluation, is_best)

    async def saved(self, step: int, path: Path) -> None:
        for callback in self._begun:
            await self._call(callback, f"at the checkpoint of step {step}", callback.saved, step, path)

    async def end(self, status: str) -> None:
        """Tell all that were told of the begin, whichever of them fails; a second time nobody."""
        begun, self._begun = self._begun, []
        failed = []
        for callback in begun:
            try:
                await self._call(callback, "as the run ended", callback.end, status)
            except AsynctileError as error:
                failed.append(error)
        self._thread.shutdown(wait=False)
        if failed:
            raise failed[0]

    async def _call(self, callback: Callback, when: str, method: Callable[..., None], *told: Any) -> None:
        """To its end also if cancelled: the next call must not meet it."""
        error = await finish(asyncio.get_running_loop().run_in_executor(self._thread, _error_of, method, told))
        if error is not None:
            kind, frames = type(callback), traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if frame.filename == getattr(sys.modules[kind.__module__], "__file__", None)]
            place = (own or frames)[-1]
            raise AsynctileError(
                f"the callback {kind.__module__}:{kind.__qualname__} failed {when}, line {place.lineno} of {place.filename}: "
                f"{error!r}; mend it, or go on without it"
            ) from error


def _error_of(method: Callable[..., None], told: Sequence[Any]) -> BaseException | None:
    """What a call raised, as a value: no future takes a StopIteration, and a SystemExit would end the loop beside its tasks."""
    try:
        method(*told)
    except BaseException as error:
        return error
    return None
