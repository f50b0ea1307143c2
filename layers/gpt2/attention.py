"""Causal self-attention of GPT-2: c_attn, the attention tiles, then c_proj, one group of heads after another.

A group's q, k and v are used as soon as they are computed, and its output is projected at once, so only one group has to stay
near. grouped_attention.py computes a group.

Legend: R rows of a row tile, g heads in a group, hs columns of a head. The column tiles of qkv are those of q, then k, then v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asynctile.layers import grouped_attention, linear
from asynctile.layers.grouped_attention import QKV, Column
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row


@dataclass(frozen=True, slots=True)
class AttentionActivations:
    """The activations that backward needs: qkv and out (R, g hs), stats (2 g, R) with the log-sum-exp."""

    qkv: Grid
    out: Grid
    stats: Grid


def forward(recording: Recording, rows: Sequence[Row], layer: int, x: Grid, residual: Grid, out: Grid) -> AttentionActivations:
    """Compute out = residual + attention(x); return what backward needs."""
    tiling, title = recording.tiling, _title(layer)
    kept = AttentionActivations(
        recording.grid(f"{title}.qkv", tiling["sections"]),
        recording.grid(f"{title}.out", tiling["heads"]),
        recording.per_head(f"{title}.stats", 2),
    )
    for group in range(len(tiling["heads"])):
        qkv = _of_group(recording, kept.qkv, group)
        for _, n in qkv:
            linear.forward(recording, rows, x, f"{title}.c_attn", [(k, n) for k in recording.columns], kept.qkv)
        grouped_attention.forward(recording, rows, layer, group, qkv, kept.out, kept.stats)
        visits = [(group, n) for n in recording.columns]
        linear.forward(recording, rows, kept.out, f"{title}.c_proj", visits, out, residual)
    return kept


def backward(
    recording: Recording, rows: Sequence[Row], layer: int, kept: AttentionActivations, x: Grid, dresidual: Grid, dinp: Grid
) -> None:
    """Compute dinp (+)= the gradient of x, from the gradient of the residual stream after attention; groups in reverse."""
    tiling, title = recording.tiling, _title(layer)
    dprojected = linear.residual_backward(recording, rows, dresidual, f"{title}.c_proj", f"{title}.dprojected")
    dout = recording.grid(f"{title}.dout", tiling["heads"])
    grid = recording.grid(f"{title}.dqkv", tiling["sections"])
    for group in reversed(range(len(tiling["heads"]))):
        visits = [(group, n) for n in reversed(recording.columns)]
        linear.backward(recording, rows, kept.out, dprojected, f"{title}.c_proj", visits, dout)
        qkv, dqkv = _of_group(recording, kept.qkv, group), _of_group(recording, grid, group)
        grouped_attention.backward(recording, rows, layer, group, qkv, kept.out, kept.stats, dout, dqkv)
        for _, n in reversed(dqkv):
            linear.bias_backward(recording, rows, grid, f"{title}.c_attn", [n])
            visits = [(k, n) for k in reversed(recording.columns)]
            linear.backward(recording, rows, x, grid, f"{title}.c_attn", visits, dinp)


def _title(layer: int) -> str:
    return f"h.{layer}.attn"


def _of_group(recording: Recording, qkv: Grid, group: int) -> QKV:
    """Return the three column tiles that hold the q, k and v of a group of heads."""
    groups = len(recording.tiling["heads"])
    return QKV(*(Column(qkv, section * groups + group) for section in range(3)))
