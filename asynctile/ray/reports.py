"""The callback by which node 0 of a run reports checkpoints and metrics to Ray Train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asynctile.callbacks import Callback
from asynctile.cli.checkpoints import step_of
from asynctile.layers.evaluation import Evaluation
from asynctile.layers.report import StepReport

__all__ = ["Reports"]


class Reports(Callback):
    """Reports each checkpoint, with the metrics of the newest step and the newest validation loss. Waits until Ray has both.

    Ray keeps one report at a time and looks for it about once a second. So steps without a checkpoint are not reported.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}

    def step(self, report: StepReport) -> None:
        self._metrics.update(report.as_dict())

    def validation(self, step: int, evaluation: Evaluation, is_best: bool) -> None:
        self._metrics["validation_loss"] = evaluation.loss

    def saved(self, step: int, path: Path) -> None:
        from ray.train import Checkpoint, report

        if step_of(path.name):  # the best model so far is not a checkpoint
            report(dict(self._metrics), checkpoint=Checkpoint(str(path)))
