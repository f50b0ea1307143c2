"""Callbacks: how a run of `asynctile train` tells other programs about its steps, validations and checkpoints.

Covers `Callback` and `Run`, the interface for users, and `Callbacks`, through which cli/session.py calls them. cli/options.py
says how they are named on a command line. A program with a Trainer of its own needs no callbacks: `Trainer.run` yields reports.
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
    """The run that begins or goes on.

    folder: of the run. options, config: the contents of its run.json and of the model's config.json. parameters: the number of
    parameters of the model. steps: of the whole run. first_step: the number of the next step, 1 in a new run.
    """

    folder: Path
    options: Mapping[str, Any]
    config: Mapping[str, Any]
    parameters: int
    steps: int
    first_step: int


class Callback:
    """The methods that a run calls. Override those that you need; here every one does nothing.

    They are plain functions, called one after another in one thread, which is not the event loop's. The run waits until a call
    returns, so slow work belongs in a thread of your own. An exception ends the run as a failed step does, with a message that
    names the callback.
    """

    def begin(self, run: Run) -> None:
        """Called before the first step and the first validation."""

    def step(self, report: StepReport) -> None:
        """Called after each step, skipped ones included. A resumed run repeats the steps after its checkpoint."""

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        """Called after a validation. step: the steps that the model had done, 0 before the first."""

    def saved(self, step: int, path: Path) -> None:
        """Called when the folder `path` is whole: a checkpoint of a step, or the best model so far in `checkpoints/best`."""

    def end(self, status: str) -> None:
        """Called last, also if the run or another callback failed. status: "finished", "stopped" (can resume) or "failed"."""


class Callbacks:
    """The callbacks of a run. A call raises AsynctileError if a callback raised. Without callbacks nothing is awaited."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        #: the callbacks whose `begin` was called, which must hear of the end
        self._begun: list[Callback] = []
        self._thread = ThreadPoolExecutor(1, "callbacks")  # starts its thread at the first call

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
        """Call `end` of every callback whose `begin` was called, even if one fails. A second time this does nothing."""
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
        """Call one method, to its end even if cancelled: the next call must not run beside it."""
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
    """Return what a call raised: no future takes a StopIteration, and a SystemExit would end the loop before its tasks."""
    try:
        method(*told)
    except BaseException as error:
        return error
    return None
