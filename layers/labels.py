"""The numbers in a run's picture: the label at the end of each curve, and its height.

Covers `Label` and `labels_of`. curves.py reads the curves, plot.py draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from asynctile.layers.curves import Curves
from asynctile.layers.report import number_in

__all__ = ["Label", "labels_of"]

#: The gap between two labels, in lines.
_GAP = 0.4


@dataclass(frozen=True, slots=True)
class Label:
    """Lines of text for the curve `of`, a name in `Curves.names`. height: of the first line, as a share of the axis."""

    of: str
    lines: tuple[str, ...]
    height: float


def labels_of(curves: Curves, low: float, high: float, line: float) -> list[Label]:
    """Return the labels from the top down, none overlapping another.

    low, high: the ends of the axis, in nats. line: the height of a line of text, as a share of the axis.
    """

    def label(of: str, value: float, *lines: str) -> Label:
        return Label(of, lines, min(1.0, max(0.0, (value - low) / (high - low))))

    _, smoothed = curves.smoothed[-1]
    found = [label("smoothed", smoothed, _nats(smoothed))]
    if curves.validation:
        last, best = curves.validation[-1], curves.best
        is_best = ", the best" if best[0] == last[0] else ""
        found.append(label("validation", last[1], _nats(last[1]) + is_best, *_other_units(curves, last[0])))
        if not is_best:
            found.append(label("best", best[1], f"{_nats(best[1])}, step {best[0]:,}", *_other_units(curves, best[0])))
    if (mark := curves.bigram_loss) is not None:
        side = "above" if mark > high else "below"
        lines = [_nats(mark)] if low <= mark <= high else ["bigram model:", f"{_nats(mark)}, {side}"]
        found.append(label("bigrams", mark, *lines))
    return _spread(found, line)


def _nats(loss: float) -> str:
    return f"{loss:#.5g}"


def _other_units(curves: Curves, step: int) -> Iterable[str]:
    """Yield the loss of the validation after `step` in other units than nats, as far as the metrics have them."""
    line = curves.validations[step]
    if (perplexity := number_in(line, "validation_perplexity")) is not None:
        yield f"perplexity {perplexity:,.4g}"
    if (bits := number_in(line, "validation_bits_per_byte")) is not None:
        yield f"{bits:.4f} bits per byte"


def _spread(labels: list[Label], line: float) -> list[Label]:
    """Return the labels with gaps between them, each as near to its height as the labels above allow, none below the axis."""
    placed: list[Label] = []
    ceiling = 1.0 + line
    for label in sorted(labels, key=lambda label: -label.height):
        placed.append(replace(label, height=min(label.height, ceiling - line / 2)))
        ceiling = placed[-1].height - (len(label.lines) - 0.5 + _GAP) * line
    floor = -line / 2
    for n, label in reversed([*enumerate(placed)]):
        placed[n] = replace(label, height=max(label.height, floor + (len(label.lines) - 0.5) * line))
        floor = placed[n].height + (0.5 + _GAP) * line
    return placed
