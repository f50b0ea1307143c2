"""The curves of a run's picture, from its metrics.jsonl: losses a step, smoothed, and at validations, with a name for each.

Covers `Curves` and `read_curves`. The numbers beside them are labels.py, how they are drawn is plot.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asynctile.layers.report import number_in, read_metrics

__all__ = ["Curves", "Points", "read_curves"]

Points = list[tuple[int, float]]

#: The largest loss that is drawn: sums of as many as a run has, and what lies between two of them, stay finite.
_LARGEST = 1e300


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """In nats a token over the step. validations: the lines of the metrics behind the points of `validation`, by step.
    bigram_loss: a level to compare with.
    """

    training: Points
    smoothed: Points
    validation: Points
    validations: Mapping[int, Mapping[str, Any]]
    bigram_loss: float | None

    @property
    def best(self) -> tuple[int, float]:
        """The first of the lowest validation losses; ValueError if there is none."""
        return min(self.validation, key=lambda point: point[1])

    def names(self) -> dict[str, str]:
        """What the legend calls each, by what it says it of."""
        found = {"training": "training, each step", "smoothed": "training, smoothed"}
        if self.validation:
            found |= {"validation": "validation", "best": "best validation"}
        if self.bigram_loss is not None:
            found["bigrams"] = "bigram model"
        return found


def read_curves(path: Path, bigram_loss: float | None) -> Curves:
    """Those of a metrics.jsonl. ValueError if it cannot be read or has no loss to draw."""
    losses: dict[int, float] = {}
    validation: dict[int, float] = {}
    validations: dict[int, Mapping[str, Any]] = {}
    count = 0
    try:
        for record in read_metrics(path):
            count += 1
            for name, curve in (("loss", losses), ("validation_loss", validation)):
                if (value := number_in(record, name)) is not None and abs(value) <= _LARGEST:
                    curve[record["step"]] = value  # resuming writes some steps twice
                    if curve is validation:
                        validations[record["step"]] = record
    except OSError as error:
        raise ValueError(
            f"metrics {path} cannot be read: {error.strerror}; expected the metrics.jsonl of a run"
        ) from error
    if not losses:
        raise ValueError(
            f"metrics {path} have no loss that can be drawn in {count} lines; expected the metrics.jsonl of a run"
        )
    training = sorted(losses.items())
    return Curves(
        training=training,
        smoothed=_smooth(training),
        validation=sorted(validation.items()),
        validations=validations,
        bigram_loss=bigram_loss,
    )


def _smooth(points: Points) -> Points:
    """The mean of each point's neighbours: 2% of the run to either side. Less at the beginning, where losses fall, so that it
    does not lag; at the end only what is behind is missing, else the last point would be that of one step.
    """
    reach = len(points) // 50
    total = [0.0]
    for _, loss in points:
        total.append(total[-1] + loss)
    smoothed = []
    for n, (step, _) in enumerate(points):
        before = min(reach, n)
        after = min(before, len(points) - 1 - n)
        smoothed.append((step, (total[n + after + 1] - total[n - before]) / (before + after + 1)))
    return smoothed
