"""The callback by which node 0 of a run reports checkpoints and metrics to Ray Train."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asynctile.callbacks import Callback
from asynctile.cli.checkpoints import step_of
from asynctile.layers.evaluation import Evaluation
from asynctile.layers.report import StepReport

__all__ = ["Reports"]


class Reports(Callback):
    """Reports each checkpoint, with the metrics of its step and the newest validation loss.

    Ray takes a report once all workers report, and then copies the checkpoint. Steps go on meanwhile: they notice a worker that
    was lost, which Ray may not. Ray has a report before the next one, and before the run removes its checkpoint. Ray looks for
    reports about once a second, so steps without a checkpoint are not reported.
    """

    def __init__(self) -> None:
        self._reporting = ThreadPoolExecutor(1, "reports")
        self._reported: Future[None] | None = None
        #: by step, since the newest checkpoint: steps go on while one is written
        self._metrics: dict[int, dict[str, Any]] = {}
        self._validated: dict[str, float] = {}

    def step(self, report: StepReport) -> None:
        self._metrics[report.step] = report.as_dict()

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        self._validated = {"validation_loss": evaluation.loss}

    def saved(self, step: int, path: Path) -> None:
        from ray.train import Checkpoint, report

        if not step_of(path.name):
            return  # the best model so far, which is not a checkpoint
        metrics = {"step": step, **self._metrics.get(step, {}), **self._validated}
        self._metrics = {later: found for later, found in self._metrics.items() if later > step}
        self._wait()
        self._reported = self._reporting.submit(report, metrics, checkpoint=Checkpoint(str(path)))

    def end(self, status: str) -> None:
        if status != "failed":  # else others may have gone, and Ray ends the report
            self._wait()
        self._reporting.shutdown(wait=False, cancel_futures=True)

    def _wait(self) -> None:
        """Wait until Ray has the last report."""
        reported, self._reported = self._reported, None
        if reported is not None:
            reported.result()
