"""Draws the pictures of bench/results/plans.md from bench_policies.json and bench_verdicts.json: no figure is typed.

    python bench/plan_pictures.py [--into docs/pictures]

Each picture has its own light ground, so that it reads the same on a light and on a dark page. The same results give the same
bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, library
from nntile_paper import FSDP, NNTILE, model
from simulated import GREEDY, LAYERS, LRU, PLANNED, POLICIES

GROUND, INK, GRID = "#fbfaf6", "#1d2733", "#c9ccd1"
COLOURS = {PLANNED: "#1f5a96", LRU: "#2e8b57", GREEDY: "#c8501e", LAYERS: "#8a5fb0"}
MARKERS = {PLANNED: "o", LRU: "s", GREEDY: "^", LAYERS: "D"}
MEASURED = "#666666"
SIMULATED = "simulated; nothing ran"


class Results:
    """The tables of one benchmark by the beginning of their title."""

    def __init__(self, name: str) -> None:
        self._tables = json.loads((RESULTS / f"{name}.json").read_text())["tables"]

    def rows(self, beginning: str) -> list[dict[str, Any]]:
        """Return the rows of a table, by column."""
        table = next(table for table in self._tables if table["title"].startswith(beginning))
        return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def paper(figure: Any, policies: Results, _: Results) -> None:
    """Speed by size, with 4 and 8 layers: what the paper measured, and what the clock says."""
    rows = policies.rows("TFLOP/s by policy")
    for axes, layers in zip(figure.subplots(1, 2, sharey=True), (4, 8), strict=True):
        for name, found, style in (("NNTile, measured", NNTILE, "-"), ("FSDP in TF32, measured", FSDP, ":")):
            sizes = [model(layers, width).parameter_count / 1e9 for width in found[layers]]
            axes.plot(sizes, found[layers].values(), style, color=MEASURED, marker=".", label=name)
        own = [row for row in rows if row["layers"] == layers]
        for policy in (PLANNED, GREEDY):
            _line(axes, [row["billions"] for row in own], [row[policy] for row in own], policy, f"{policy}, simulated")
        axes.set(title=f"{layers} layers", xlabel="billions of parameters", ylim=(0, None))
        _name(axes, [row["billions"] for row in own], [row[PLANNED] for row in own],
              ["" if row["fits in RAM"] else "needs\n{:,.0f} GB RAM".format(row["RAM GB"]) for row in own])  # fmt: skip
    figure.axes[0].set_ylabel("TFLOP/s of eight A100")
    _legend(figure)


def depth(figure: Any, policies: Results, _: Results) -> None:
    """Speed by layers at about the same size."""
    rows = policies.rows("TFLOP/s by policy")
    depths = sorted({row["layers"] for row in rows})
    sizes = len(rows) // len(depths)
    for number, axes in enumerate(figure.subplots(1, sizes, sharey=True)):
        own = [[row for row in rows if row["layers"] == layers][number] for layers in depths]
        for policy in POLICIES:
            _line(axes, depths, [row[policy] for row in own], policy)
        axes.set(title=f"about {min(row['billions'] for row in own):.0f} B", xlabel="layers", xscale="log", ylim=(0, None))
        axes.set_xticks(depths, map(str, depths))
        axes.minorticks_off()
    figure.axes[0].set_ylabel(f"TFLOP/s, {SIMULATED}")
    _legend(figure)


def memory(figure: Any, policies: Results, _: Results) -> None:
    """Speed and traffic under caps of each GPU, and how a step goes under one of them."""
    rows = policies.rows("TFLOP/s by the memory")
    speed, traffic = figure.subplots(1, 2)
    caps = [row["GB of each GPU"] for row in rows]
    for axes, column, word in ((speed, "{}", "TFLOP/s"), (traffic, "{}, GB over links to RAM", "GB a step over links to RAM")):
        for policy in POLICIES:
            _line(axes, caps, [row[column.format(policy)] for row in rows], policy)
        axes.set(xlabel="GB of each GPU", xscale="log", ylabel=f"{word}, simulated", ylim=(0, None))
        axes.set_xticks(caps, map(str, caps))
        axes.minorticks_off()
    _legend(figure)


def course(figure: Any, policies: Results, _: Results) -> None:
    """Which share of the GPUs computes, from the beginning of a step to its end."""
    rows = policies.rows("share of GPUs that compute")
    parts = [(row["part"] - 1) / len(rows) for row in rows] + [1.0]
    shown = [policy for policy in POLICIES if rows[0][policy] is not None]
    for axes, policy in zip(figure.subplots(len(shown), 1, sharex=True), shown, strict=True):
        busy = [row[policy] for row in rows]
        axes.fill_between(parts, [*busy, busy[-1]], step="post", color=COLOURS[policy], alpha=0.8, linewidth=0)
        axes.set(ylim=(0, 1), xlim=(0, 1), yticks=(0, 1), yticklabels=("0", "all"))
        axes.set_title(f"{policy}: GPUs compute {sum(busy) / len(busy):.0%} of the step", loc="left")
    figure.axes[-1].set_xlabel(f"part of the step; {SIMULATED}")


def verdicts(figure: Any, _: Results, found: Results) -> None:
    """Seconds of a step on one PC, by size, beside the bounds of others by formula."""
    rows = found.rows("a step, simulated")
    axes = figure.subplots()
    fits = [row for row in rows if row["s a step"] is not None]
    _line(axes, [row["billions"] for row in fits], [row["s a step"] for row in fits], PLANNED, "asynctile, simulated")
    others = (("FSDP2 at least s", "FSDP2 in RAM, by formula", GREEDY),
              ("DeepSpeed in RAM at least s", "DeepSpeed in RAM, by formula", LRU),
              ("ZeRO-Infinity on disk at least s", "ZeRO-Infinity on the disk, by formula", LAYERS))  # fmt: skip
    for column, name, like in others:
        own = [row for row in rows if row[column] is not None]
        _line(axes, [row["billions"] for row in own], [row[column] for row in own], like, name)
    larger = [row["billions"] for row in rows if row["s a step"] is None]
    for size in larger:
        axes.axvline(size, color=MEASURED, linestyle=":")
    axes.annotate("these do\nnot fit ", (min(larger), 0.03), xycoords=("data", "axes fraction"), ha="right")
    axes.set(xscale="log", yscale="log", xlabel="billions of parameters", ylabel="seconds a step")
    sizes = [row["billions"] for row in rows]
    axes.set_xticks(sizes, [f"{size:.1f}" if size < 10 else f"{size:.0f}" for size in sizes])
    axes.minorticks_off()
    axes.legend(loc="upper left")


def _legend(figure: Any) -> None:
    """Put the legend of the first plot above all plots."""
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def _line(axes: Any, x: Iterable[float], y: Iterable[float | None], policy: str, name: str | None = None) -> None:
    known = [(one, other) for one, other in zip(x, y, strict=True) if other is not None]
    axes.plot(*zip(*known, strict=True), color=COLOURS[policy], marker=MARKERS[policy], label=name or policy)


def _name(axes: Any, x: list[float], y: list[float], words: list[str]) -> None:
    for at, above, word in zip(x, y, words, strict=True):
        axes.annotate(word, (at, above), textcoords="offset points", xytext=(0, -52), ha="center", fontsize=8)


PICTURES: dict[str, tuple[Callable[[Any, Results, Results], None], tuple[float, float]]] = {
    "paper": (paper, (9, 4)), "depth": (depth, (9, 3.6)), "memory": (memory, (9, 3.8)), "course": (course, (9, 5)),
    "verdicts": (verdicts, (9, 4.4)),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "pictures", help="a folder; default docs/pictures")
    parser.add_argument("--png", action="store_true", help="draw PNG for a look, instead of SVG")
    options = parser.parse_args()
    results = Results("bench_policies"), Results("bench_verdicts")
    matplotlib = library("matplotlib")
    figures = library("matplotlib.figure")
    style = {"svg.fonttype": "none", "svg.hashsalt": "asynctile", "font.size": 10, "text.color": INK, "axes.edgecolor": INK,
             "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.grid": True, "grid.color": GRID,
             "axes.facecolor": GROUND, "axes.spines.top": False, "axes.spines.right": False,
             "legend.frameon": False}  # fmt: skip
    kind = "png" if options.png else "svg"
    for name, (draw, size) in PICTURES.items():
        with matplotlib.rc_context(style):
            figure = figures.Figure(figsize=size, layout="constrained", facecolor=GROUND)
            draw(figure, *results)
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(options.into / f"plans-{name}.{kind}", dpi=110, metadata=metadata)


if __name__ == "__main__":
    main()
