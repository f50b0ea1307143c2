"""The events, counts and log lines of a model, its training and its server: steps, saves, failures, requests for text.

asynctile/events.py defines the events.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from weakref import WeakSet

from asynctile.events import (
    OPERATION,
    SKIPPED,
    TORN,
    DataEnded,
    Fault,
    FirstToken,
    RequestBegun,
    RequestDone,
    SaveBegun,
    SaveDone,
    SaveFailed,
    StepDone,
    TextsWait,
)
from asynctile.layers.report import StepReport
from asynctile.runtime import Runtime

logger = logging.getLogger(__name__)

_NUMBERS = itertools.count(1)
#: Shares for which it was already reported that texts wait for steps.
_TOLD: WeakSet[Runtime] = WeakSet()


def tell_step(runtime: Runtime, model: str, report: StepReport) -> None:
    """Count and report a step that has updated or was skipped."""
    counts = runtime.counts
    counts.steps += not report.skipped
    counts.skipped_steps += report.skipped
    counts.step_tokens += report.tokens
    counts.step_s += report.step_s
    shared = {field.name: getattr(report, field.name) for field in fields(report) if field.name in StepDone.__slots__}
    runtime.tell(StepDone, model=model, **shared)
    if (recorder := runtime.life.recorder) is not None:
        said = {name: value for name, value in report.as_dict().items() if isinstance(value, int | float)}
        recorder.step(runtime.tell.share, f"step {report.step}", report.step_s, said)
    if report.skipped:
        what = f"its gradient ({report.grad_norm:g})" if math.isfinite(report.loss) else f"its loss ({report.loss:g})"
        text = f"the step after step {report.step} of {model} was skipped: {what} was not finite"
        logger.warning("%s", text)
        runtime.tell(Fault, kind=SKIPPED, text=text)
    else:
        logger.debug("step %d of %s: loss %.6g in %.3f s", report.step, model, report.loss, report.step_s)


def tell_data_ended(runtime: Runtime, model: str, steps: int, asked: int) -> None:
    """Report that the batches of a run ended before as many steps as were asked for."""
    text = "the batches of %s ended after %d of %d steps; give more batches, or ask for fewer steps"
    logger.warning(text, model, steps, asked)
    runtime.tell(DataEnded, model=model, steps=steps, asked=asked)


def tell_torn(runtime: Runtime, model: str, why: str) -> None:
    """Report that a model is torn: its weights belong to no single step any more."""
    logger.warning("%s is torn: %s", model, why)
    runtime.tell(Fault, kind=TORN, text=f"{model} is torn: {why}")


def tell_texts_wait(runtime: Runtime, model: str) -> None:
    """Report that a text of a model has waited for a step on its own share."""
    text = (f"texts of {model} wait for the training steps on their share, and each step discards their cache; "
            "use model.serve(part), with part another share of the engine, so that texts wait for no step")  # fmt: skip
    logger.warning("%s", text)
    runtime.tell(TextsWait, model=model, text=text)


def tell_failed(runtime: Runtime, model: str, error: Exception) -> None:
    """Report that a run of a model failed in its operations, transfers or tiers. The error goes to the run's awaiter."""
    runtime.tell(Fault, kind=OPERATION, text=f"a run of {model} failed: {error}")


@contextmanager
def told_save(runtime: Runtime, model: str, path: Path, step: int, *, behind: bool) -> Iterator[None]:
    """Report the beginning and the end of writing the folder `path` of a model, around the body of the block.

    step: the updates that the model had. behind: whether the body runs in a task that nobody may await, so that a failure is
    logged as well.
    """
    began = time.monotonic()
    runtime.tell(SaveBegun, model=model, path=str(path), step=step, behind=behind)
    try:
        yield
    except BaseException as error:
        why = "it was cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else str(error)
        if behind:
            logger.warning("the save of %s at step %d to %s failed: %s", model, step, path, why)
        runtime.tell(SaveFailed, model=model, path=str(path), step=step, seconds=time.monotonic() - began, error=why)
        raise
    seconds = time.monotonic() - began
    logger.info("%s at step %d is saved in %s after %.1f s", model, step, path, seconds)
    runtime.tell(SaveDone, model=model, path=str(path), step=step, seconds=seconds)


class ToldRequest:
    """The events of one request for text, on the engine's loop, from when it was asked for. runtime: computes it."""

    def __init__(self, runtime: Runtime, model: str, prompt_tokens: int) -> None:
        self._runtime = runtime
        self._model = model
        self._number = next(_NUMBERS)
        self._prompt_tokens = prompt_tokens
        self._new_tokens = 0
        self._asked = time.monotonic()
        self._steps = runtime.counts.steps
        self._waited_s: float | None = None
        self._first_token_s: float | None = None

    def begin(self) -> None:
        """Report that the request is admitted."""
        waited_s = self._waited_s = time.monotonic() - self._asked
        tokens = self._prompt_tokens
        self._runtime.tell(RequestBegun, model=self._model, request=self._number, prompt_tokens=tokens, waited_s=waited_s)

    def token(self) -> None:
        """Count one more token, and report the first."""
        self._new_tokens += 1
        self._runtime.counts.request_tokens += 1
        if self._runtime.counts.steps != self._steps and self._runtime not in _TOLD:
            _TOLD.add(self._runtime)
            tell_texts_wait(self._runtime, self._model)
        if self._first_token_s is None:
            seconds = self._first_token_s = time.monotonic() - self._asked
            self._runtime.tell(FirstToken, model=self._model, request=self._number, seconds=seconds)

    def end(self, reason: str, error: str | None) -> None:
        """Report that the request is over."""
        total_s = time.monotonic() - self._asked
        counts = self._runtime.counts
        counts.requests += 1
        counts.request_s += total_s
        self._runtime.tell(
            RequestDone, model=self._model, request=self._number, reason=reason, prompt_tokens=self._prompt_tokens,
            new_tokens=self._new_tokens, waited_s=total_s if self._waited_s is None else self._waited_s,
            first_token_s=self._first_token_s, total_s=total_s, error=error,
        )  # fmt: skip
