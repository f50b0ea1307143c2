"""Causal self-attention of LLaMA: q_proj, k_proj, v_proj, the attention tiles, then o_proj, one group of heads after another.

As in GPT-2, a group's q, k and v are used as soon as they are computed, and its output is projected at once. A group has whole
key heads with all query heads that share them. rotation.py makes queries and keys ready, grouped_attention.py computes a group.

Legend: R rows of a row tile, g heads in a group, c heads of its keys, hs columns of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asynctile.layers import grouped_attention, linear
from asynctile.layers.grouped_attention import QKV, Column
from asynctile.layers.llama import rotation
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row

#: The names of the projections, in the order of `QKV`.
_NAMES = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class GroupedActivations:
    """The activations that backward needs, by row tile and group.

    q (R, g hs), k and v (R, c hs): before their norms if the model has them, else rotated. out (R, g hs). stats (2 g, R) with
    the log-sum-exp.
    """

    q: Grid
    k: Grid
    v: Grid
    out: Grid
    stats: Grid

    def of_group(self, group: int) -> QKV:
        """Return the tiles of q, k and v of a group."""
        return _of_group((self.q, self.k, self.v), group)


def forward(recording: Recording, rows: Sequence[Row], layer: int, x: Grid, residual: Grid, out: Grid) -> GroupedActivations:
    """Compute out = residual + attention(x); return what backward needs."""
    tiling, title = recording.tiling, _title(layer)
    kept = GroupedActivations(
        *_grids(recording, f"{title}."),
        recording.grid(f"{title}.out", tiling["heads"]),
        recording.per_head(f"{title}.stats", 2),
    )
    for group in range(len(tiling["heads"])):
        projected = kept.of_group(group)
        for name, column in zip(_NAMES, projected, strict=True):
            visits = [(k, group) for k in recording.columns]
            linear.forward(recording, rows, x, f"{title}.{name}_proj", visits, column.grid)
        qkv = rotation.ready(recording, rows, title, projected)
        grouped_attention.forward(recording, rows, layer, group, qkv, kept.out, kept.stats)
        visits = [(group, n) for n in recording.columns]
        linear.forward(recording, rows, kept.out, f"{title}.o_proj", visits, out, residual)
    return kept


def backward(
    recording: Recording, rows: Sequence[Row], layer: int, kept: GroupedActivations, x: Grid, dresidual: Grid, dinp: Grid
) -> None:
    """Compute dinp (+)= the gradient of x, from the gradient of the residual stream after attention; groups in reverse."""
    tiling, title = recording.tiling, _title(layer)
    dprojected = linear.residual_backward(recording, rows, dresidual, f"{title}.o_proj", f"{title}.dprojected")
    dout = recording.grid(f"{title}.dout", tiling["heads"])
    grids, dgains = _grids(recording, f"{title}.d"), rotation.gains(recording, title)
    for group in reversed(range(len(tiling["heads"]))):
        visits = [(group, n) for n in reversed(recording.columns)]
        linear.backward(recording, rows, kept.out, dprojected, f"{title}.o_proj", visits, dout)
        projected, gradients = kept.of_group(group), _of_group(grids, group)
        qkv = rotation.ready(recording, rows, title, projected) if rotation.has_norms(recording, title) else projected
        grouped_attention.backward(recording, rows, layer, group, qkv, kept.out, kept.stats, dout, gradients)
        rotation.backward(recording, rows, title, projected, gradients, dgains)
        for name, column in reversed(list(zip(_NAMES, gradients, strict=True))):
            linear.bias_backward(recording, rows, column.grid, f"{title}.{name}_proj", [group])
            visits = [(k, group) for k in reversed(recording.columns)]
            linear.backward(recording, rows, x, column.grid, f"{title}.{name}_proj", visits, dinp)
    rotation.settle(recording, rows, dgains)


def _title(layer: int) -> str:
    return f"layers.{layer}.self_attn"


def _grids(recording: Recording, title: str) -> tuple[Grid, Grid, Grid]:
    """Return grids for q, k and v, or for their gradients. title: what their names begin with."""
    heads, keys = recording.tiling["heads"], recording.tiling["key_heads"]
    q, k, v = (recording.grid(f"{title}{name}", split) for name, split in zip(_NAMES, (heads, keys, keys), strict=True))
    return q, k, v


def _of_group(grids: Sequence[Grid], group: int) -> QKV:
    return QKV(*(Column(grid, group) for grid in grids))
