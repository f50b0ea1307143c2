"""Causal self-attention with its projections, one group of heads after another: `Attention`.

A group's q, k and v are used as soon as they are computed, and its output is projected at once, so only one group has to stay
near. A group has whole key heads with all query heads that share them. grouped_attention.py computes a group.

Legend: R rows of a row tile, g heads in a group, c heads of its keys, hs columns of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from asynctile.layers import grouped_attention, linear
from asynctile.layers.grouped_attention import QKV
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row

#: Makes the grids of q, k and v, or of their gradients, whose names begin with a title; returns their columns by group.
Columns = Callable[[Recording, str], Callable[[int], QKV]]


@dataclass(frozen=True, slots=True)
class AttentionActivations:
    """The activations that backward needs, by row tile and group.

    of_group: q (R, g hs), k and v (R, c hs) of a group: before their norms if the model has them, else as attention reads them.
    out (R, g hs). stats (2 g, R) with the log-sum-exp.
    """

    of_group: Callable[[int], QKV]
    out: Grid
    stats: Grid


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The first half of a block. title: of its layers, with {} for the number of the block.

    projections: the layers that q, k and v come from. columns: where these are. output: the layer back to the residual stream.
    preparation: makes queries and keys ready for attention, as llama/rotation.py does; None: they are.
    """

    title: str
    projections: tuple[str, str, str]
    columns: Columns
    output: str
    preparation: ModuleType | None = None

    def forward(
        self, recording: Recording, rows: Sequence[Row], layer: int, x: Grid, residual: Grid, out: Grid
    ) -> AttentionActivations:
        """Compute out = residual + attention(x); return what backward needs."""
        heads, title = recording.tiling["heads"], self.title.format(layer)
        stats = recording.per_head(f"{title}.stats", 2)
        kept = AttentionActivations(self.columns(recording, f"{title}."), recording.grid(f"{title}.out", heads), stats)
        for group in range(len(heads)):
            qkv = kept.of_group(group)
            for name, column in zip(self.projections, qkv, strict=True):
                visits = [(k, column.number) for k in recording.columns]
                linear.forward(recording, rows, x, f"{title}.{name}", visits, column.grid)
            if self.preparation is not None:
                qkv = self.preparation.ready(recording, rows, title, qkv)
            grouped_attention.forward(recording, rows, layer, group, qkv, kept.out, stats)
            visits = [(group, n) for n in recording.columns]
            linear.forward(recording, rows, kept.out, f"{title}.{self.output}", visits, out, residual)
        return kept

    def backward(
        self, recording: Recording, rows: Sequence[Row], layer: int, kept: AttentionActivations, x: Grid, dresidual: Grid,
        dinp: Grid,
    ) -> None:  # fmt: skip
        """Compute dinp (+)= the gradient of x, from the gradient of the residual stream after attention; groups in reverse."""
        heads, title, preparation = recording.tiling["heads"], self.title.format(layer), self.preparation
        output = f"{title}.{self.output}"
        dprojected = linear.residual_backward(recording, rows, dresidual, output, f"{title}.dprojected")
        dout, gradients = recording.grid(f"{title}.dout", heads), self.columns(recording, f"{title}.d")
        dgains = {} if preparation is None else preparation.gains(recording, title)
        for group in reversed(range(len(heads))):
            visits = [(group, n) for n in reversed(recording.columns)]
            linear.backward(recording, rows, kept.out, dprojected, output, visits, dout)
            projected, dqkv = kept.of_group(group), gradients(group)
            qkv = projected if preparation is None else preparation.again(recording, rows, title, projected)
            grouped_attention.backward(recording, rows, layer, group, qkv, kept.out, kept.stats, dout, dqkv)
            if preparation is not None:
                preparation.backward(recording, rows, title, projected, dqkv, dgains)
            for name, column in reversed(list(zip(self.projections, dqkv, strict=True))):
                linear.bias_backward(recording, rows, column.grid, f"{title}.{name}", [column.number])
                visits = [(k, column.number) for k in reversed(recording.columns)]
                linear.backward(recording, rows, x, column.grid, f"{title}.{name}", visits, dinp)
        if preparation is not None:
            preparation.settle(recording, rows, dgains)
