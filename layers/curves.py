"""The curves of a run's picture, read from its metrics.jsonl: training loss, smoothed loss, validation loss.

Covers `Curves`, which also names each curve for the legend, and `read_curves`. labels.py makes the numbers beside the curves,
plot.py draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asynctile.layers.report import number_in, read_metrics

__all__ = ["Curves", "Points", "read_curves"]

Points = list[tuple[int, float]]

#: The largest loss that is drawn: sums and differences of a run's losses stay finite.
_LARGEST = 1e300


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """The curves of a run: losses in nats per token over the step.

    validations: the metrics lines of the points of `validation`, by step. bigram_loss: a level to compare with, or None.
    """

    training: Points
    smoothed: Points
    validation: Points
    validations: Mapping[int, Mapping[str, Any]]
    bigram_loss: float | None

    @property
    def best(self) -> tuple[int, float]:
        """The point of the lowest validation loss, the first one if several are equal; ValueError if there is none."""
        return min(self.validation, key=lambda point: point[1])

    def names(self) -> dict[str, str]:
        """Return the legend's text for each curve, by the curve's name here."""
        found = {"training": "training, each step", "smoothed": "training, smoothed"}
        if self.validation:
            found |= {"validation": "validation", "best": "best validation"}
        if self.bigram_loss is not None:
            found["bigrams"] = "bigram model"
        return found


def read_curves(path: Path, bigram_loss: float | None) -> Curves:
    """Return the curves of a metrics.jsonl. ValueError if it cannot be read or has no loss to draw."""
    losses: dict[int, float] = {}
    validation: dict[int, float] = {}
    validations: dict[int, Mapping[str, Any]] = {}
    count = 0
    try:
        for record in read_metrics(path):
            count += 1
            for name, curve in (("loss", losses), ("validation_loss", validation)):
                if (value := number_in(record, name)) is not None and abs(value) <= _LARGEST:
                    curve[record["step"]] = value  # a resumed run writes some steps twice: the last one counts
                    if curve is validation:
                        validations[record["step"]] = record
    except OSError as error:
        raise ValueError(
            f"metrics {path} cannot be read: {error.strerror}; expected the metrics.jsonl of a run"
        ) from error
    if not losses:
        raise ValueError(
            f"metrics {path} has no loss that can be drawn in its {count} lines; expected the metrics.jsonl of a run"
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
    """Return the mean of each point and its neighbors: 2% of the run on either side.

    Near the beginning, where losses fall fast, the window shrinks on both sides so that the mean does not lag. Near the end
    only the missing later points are left out, otherwise the last value would be the loss of a single step.
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
