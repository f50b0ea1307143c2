"""The picture of a run: its loss, step by step.

Covers `loss_curve`. It draws with matplotlib if the extra `plot` is installed, otherwise it writes a plain SVG itself.
curves.py and labels.py supply the content. The trainer and the program write the metrics.
"""

from __future__ import annotations

import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asynctile.layers.curves import Curves, Points, read_curves
from asynctile.layers.labels import Label, labels_of
from asynctile.storage.folder import write_file

__all__ = ["loss_curve"]

_LIGHT, _DARK, _ACCENT, _BEST, _GREY = "#a9c4e0", "#1f5a96", "#c8501e", "#2e8b57", "#666666"
_COLOURS = {"training": _LIGHT, "smoothed": _DARK, "validation": _ACCENT, "best": _BEST, "bigrams": _GREY}
_WIDTH, _HEIGHT = 800, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 146, 44, 56
#: The approximate width of a letter in pixels, and the height of a line of a label, as a share of the axis.
_LETTER, _LINE = 6.4, 0.036
#: A range of values is too narrow to draw if it is below this share of them plus this absolute amount.
_SHARE, _LEAST = 1e-12, 1e-300


def loss_curve(
    metrics_jsonl_path: str | os.PathLike[str],
    png_path: str | os.PathLike[str],
    *,
    bigram_loss: float | None = None,
) -> Path:
    """Draw the loss of a run over its steps, in nats per token; return the path of the picture.

    The picture shows the training loss of each step (light), the same smoothed, and the points of validations. Numbers stand at
    the ends of the curves, those of the last and the best validation also in other units.

    metrics_jsonl_path: lines of JSON with `step` and `loss` or `validation_loss`. Losses that are not finite or beyond 1e300
    are left out. If several lines have the same step, the last one counts. bigram_loss: a level to compare with. It is drawn if
    it lies between the losses; otherwise its label says on which side it lies.

    Returns `png_path`, or the same path with `.svg` if matplotlib is not installed. ValueError if no line has a loss to draw.
    """
    curves = read_curves(Path(metrics_jsonl_path), bigram_loss)
    path = Path(png_path)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        path = path.with_suffix(".svg")
        write_file(path, _svg(curves).encode())
        return path
    write_file(path, png(curves, Figure(figsize=(8, 4.8), dpi=120)))
    return path


def png(curves: Curves, figure: Any) -> bytes:
    # A Figure of its own, not pyplot: it has no global state and needs no window system.
    axes, names = figure.add_axes((0.075, 0.11, 0.745, 0.8)), curves.names()
    axes.plot(*zip(*curves.training, strict=True), color=_LIGHT, linewidth=1, label=names["training"])
    axes.plot(*zip(*curves.smoothed, strict=True), color=_DARK, linewidth=1.8, label=names["smoothed"])
    if curves.validation:
        points = zip(*curves.validation, strict=True)
        axes.plot(*points, "o-", color=_ACCENT, markersize=4, linewidth=1, label=names["validation"])
        step, loss = curves.best
        axes.plot([step], [loss], "o", color=_BEST, markersize=7, markeredgecolor="white", label=names["best"], zorder=3)
    low, high = axes.get_ylim()
    if curves.bigram_loss is not None and low <= curves.bigram_loss <= high:
        axes.axhline(curves.bigram_loss, color=_GREY, linewidth=1, linestyle="--", label=names["bigrams"])
    for label in labels_of(curves, low, high, _LINE):
        axes.text(1.012, label.height + 0.45 * _LINE, "\n".join(label.lines), color=_COLOURS[label.of], fontsize="small",
                  linespacing=1.1, verticalalignment="top", transform=axes.transAxes)  # fmt: skip
    axes.set(xlabel="step", ylabel="loss (nats per token)", title="Loss", ylim=(low, high))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="small", loc="upper right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _svg(curves: Curves) -> str:
    scale, names = _Scale.of(curves), curves.names()
    low, high = scale.losses[0], scale.losses[-1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_axes(scale),
        _polyline(scale, curves.training, _LIGHT, 1.0),
        _polyline(scale, curves.smoothed, _DARK, 2.0),
    ]
    if curves.validation:
        parts.append(_polyline(scale, curves.validation, _ACCENT, 1.0))
        parts += [_circle(scale.x(step), scale.y(loss), 3, _ACCENT) for step, loss in curves.validation]
        step, loss = curves.best
        parts.append(_circle(scale.x(step), scale.y(loss), 5, _BEST))
    if curves.bigram_loss is not None and low <= curves.bigram_loss <= high:
        y = f"{scale.y(curves.bigram_loss):.1f}"
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="{_GREY}" stroke-dasharray="6 4"/>'
        )
    else:
        names.pop("bigrams", None)
    for label in labels_of(curves, low, high, _LINE):
        parts += _lines(label, scale.y(low + label.height * (high - low)))
    return "\n".join([*parts, *_legend(names), "</svg>", ""])


def _lines(label: Label, first: float) -> list[str]:
    """Return the lines of a label to the right of the axes, the first at the height `first` in pixels."""
    x, line, colour = _WIDTH - _RIGHT + 8, _LINE * (_HEIGHT - _TOP - _BOTTOM), _COLOURS[label.of]
    return [
        f'<text x="{x}" y="{first + n * line:.1f}" dy="4" font-size="12" fill="{colour}">{text}</text>'
        for n, text in enumerate(label.lines)
    ]


def _legend(names: dict[str, str]) -> list[str]:
    """Return the legend, in the upper right corner of the axes, where losses are rare."""
    x = _WIDTH - _RIGHT - 36 - round(_LETTER * max(map(len, names.values())))
    parts = []
    for n, (name, label) in enumerate(names.items()):
        y = _TOP + 12 + 20 * n
        if name == "best":
            parts.append(_circle(x + 14, y, 5, _COLOURS[name]))
        else:
            parts.append(f'<line x1="{x}" x2="{x + 28}" y1="{y}" y2="{y}" stroke="{_COLOURS[name]}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 36}" y="{y}" dy="4">{label}</text>')
    return parts


def _circle(x: float, y: float, radius: int, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}" stroke="white"/>'


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """The map from steps and losses to pixels, and the round values that enclose the curves."""

    steps: list[float]
    losses: list[float]

    @classmethod
    def of(cls, curves: Curves) -> _Scale:
        steps = [step for step, _ in curves.training + curves.validation]
        losses = [loss for _, loss in curves.training + curves.validation]
        return cls(steps=_ticks(min(steps), max(steps)), losses=_ticks(min(losses), max(losses)))

    def x(self, step: float) -> float:
        share = (step - self.steps[0]) / (self.steps[-1] - self.steps[0])
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, loss: float) -> float:
        share = (loss - self.losses[0]) / (self.losses[-1] - self.losses[0])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(low: float, high: float) -> list[float]:
    """Return four to ten round values, a constant step of 1, 2 or 5 times a power of ten apart.

    The outer values enclose the range.
    """
    span = high - low
    if span <= max(abs(low), abs(high)) * _SHARE + _LEAST:
        span = max(abs(high), 1.0)
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * factor for factor in (5, 2, 1) if span >= 4 * power * factor or factor == 1)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


def _axes(scale: _Scale) -> list[str]:
    bottom, middle = _HEIGHT - _BOTTOM, (_HEIGHT - _BOTTOM + _TOP) / 2
    parts = [f'<text x="{_WIDTH / 2}" y="26" text-anchor="middle" font-size="16">Loss</text>']
    for step in scale.steps:
        x = f"{scale.x(step):.1f}"
        parts.append(f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}" stroke="#e6e6e6"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{step:g}</text>')
    for loss in scale.losses:
        y = f"{scale.y(loss):.1f}"
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#e6e6e6"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y}" dy="4" text-anchor="end">{loss:g}</text>')
    return [
        *parts,
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="black"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">step</text>',
        f'<text transform="translate(20 {middle}) rotate(-90)" text-anchor="middle">loss (nats per token)</text>',
    ]


def _polyline(scale: _Scale, points: Points, colour: str, width: float) -> str:
    path = " ".join(f"{scale.x(step):.1f},{scale.y(loss):.1f}" for step, loss in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>'
