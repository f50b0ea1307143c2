"""What a model and its training tell, and log: steps, saves, failed runs, torn models (asynctile/events.py)."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asynctile.events import OPERATION, SKIPPED, TORN, Fault, SaveBegun, SaveDone, SaveFailed, StepDone
from asynctile.layers.report import StepReport
from asynctile.share import Share

logger = logging.getLogger(__name__)


def tell_step(share: Share, model: str, report: StepReport) -> None:
    """A step has updated, or was skipped: count it and tell."""
    counts = share.counts
    counts.steps += not report.skipped
    counts.skipped_steps += report.skipped
    counts.step_tokens += report.tokens
    counts.step_s += report.step_s
    share.tell(
        StepDone, model=model, step=report.step, loss=report.loss, lr=report.lr, grad_norm=report.grad_norm,
        tokens=report.tokens, step_s=report.step_s, stall_s=report.stall_s, uploaded_bytes=report.uploaded_bytes,
        downloaded_bytes=report.downloaded_bytes, spill_read_bytes=report.spill_read_bytes,
        spill_written_bytes=report.spill_written_bytes, skipped=report.skipped, played=report.played,
    )  # fmt: skip
    if report.skipped:
        what = f"its gradient ({report.grad_norm:g})" if math.isfinite(report.loss) else f"its loss ({report.loss:g})"
        text = f"the step behind step {report.step} of {model} was skipped: {what} was not finite"
        logger.warning("%s", text)
        share.tell(Fault, kind=SKIPPED, text=text)
    else:
        logger.debug("step %d of %s: loss %.6g in %.3f s", report.step, model, report.loss, report.step_s)


def tell_torn(share: Share, model: str, why: str) -> None:
    """The weights of a model are of no single step any more."""
    logger.warning("%s is torn: %s", model, why)
    share.tell(Fault, kind=TORN, text=f"{model} is torn: {why}")


def tell_failed(share: Share, model: str, error: Exception) -> None:
    """A run over a model ended by an error of its operations, transfers or tiers, which whoever awaits it will get."""
    share.tell(Fault, kind=OPERATION, text=f"a run of {model} failed: {error}")


@contextmanager
def told_save(share: Share, model: str, path: Path, step: int, *, behind: bool) -> Iterator[None]:
    """Around the writing of a folder. behind: in a task that nobody may await, so that a failure is logged as well."""
    began = time.monotonic()
    share.tell(SaveBegun, model=model, path=str(path), step=step, behind=behind)
    try:
        yield
    except BaseException as error:
        why = "it was cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit) else str(error)
        if behind:
            logger.warning("the save of %s at step %d to %s failed: %s", model, step, path, why)
        share.tell(SaveFailed, model=model, path=str(path), step=step, seconds=time.monotonic() - began, error=why)
        raise
    seconds = time.monotonic() - began
    logger.info("%s at step %d is saved in %s after %.1f s", model, step, path, seconds)
    share.tell(SaveDone, model=model, path=str(path), step=step, seconds=seconds)
