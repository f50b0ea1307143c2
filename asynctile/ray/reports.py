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
    """Reports each checkpoint, with the metrics of its step and the newest validation loss. Waits until Ray has both.

    Ray keeps one report at a time and looks for it about once a second. So steps without a checkpoint are not reported.
    """

    def __init__(self) -> None:
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
        report(metrics, checkpoint=Checkpoint(str(path)))
