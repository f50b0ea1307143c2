"""Causal self-attention: c_attn, the attention tiles, then c_proj, one group of heads after another.

A group's q, k and v are used as soon as they are computed, and its output is projected at once, so only one group has to stay
near. asynctile/ops/attention.py defines what a pair of tiles computes.

Legend: R rows of a row tile, g heads in a group, hs columns of a head. The column tiles of qkv are those of q, then k, then v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asynctile import ops
from asynctile.layers import linear
from asynctile.layers.recording import Cached, Grid, Recording
from asynctile.layers.rows import Row


@dataclass(frozen=True, slots=True)
class AttentionActivations:
    """The activations that backward needs: qkv and out (R, g hs), stats (2 g, R) with the log-sum-exp."""

    qkv: Grid
    out: Grid
    stats: Grid


def forward(recording: Recording, rows: Sequence[Row], layer: str, x: Grid, residual: Grid, out: Grid) -> AttentionActivations:
    """Compute out = residual + attention(x); return what backward needs."""
    tiling = recording.tiling
    kept = AttentionActivations(
        recording.grid(f"{layer}.qkv", tiling["sections"]),
        recording.grid(f"{layer}.out", tiling["heads"]),
        recording.per_head(f"{layer}.stats", 2),
    )
    for group in range(len(tiling["heads"])):
        for n in _sections(recording, group):
            linear.forward(recording, rows, x, f"{layer}.c_attn", [(k, n) for k in recording.columns], kept.qkv)
        if recording.cached is None:
            _attend(recording, rows, kept, group)
        else:
            _attend_cached(recording, recording.cached, rows, layer, kept, group)
        visits = [(group, n) for n in recording.columns]
        linear.forward(recording, rows, kept.out, f"{layer}.c_proj", visits, out, residual)
    return kept


def backward(
    recording: Recording, rows: Sequence[Row], layer: str, kept: AttentionActivations, x: Grid, dresidual: Grid, dinp: Grid
) -> None:
    """Compute dinp (+)= the gradient of x, from the gradient of the residual stream after attention; groups in reverse."""
    tiling = recording.tiling
    dprojected = linear.residual_backward(recording, rows, dresidual, f"{layer}.c_proj", f"{layer}.dprojected")
    dout = recording.grid(f"{layer}.dout", tiling["heads"])
    dqkv = recording.grid(f"{layer}.dqkv", tiling["sections"])
    for group in reversed(range(len(tiling["heads"]))):
        visits = [(group, n) for n in reversed(recording.columns)]
        linear.backward(recording, rows, kept.out, dprojected, f"{layer}.c_proj", visits, dout)
        _attend_backward(recording, rows, layer, kept, dout, dqkv, group)
        for n in reversed(_sections(recording, group)):
            linear.bias_backward(recording, rows, dqkv, f"{layer}.c_attn", [n])
            visits = [(k, n) for k in reversed(recording.columns)]
            linear.backward(recording, rows, x, dqkv, f"{layer}.c_attn", visits, dinp)


def _sections(recording: Recording, group: int) -> tuple[int, int, int]:
    """Return the numbers of the three column tiles of qkv that hold the q, k and v of a group of heads."""
    groups = len(recording.tiling["heads"])
    return group, groups + group, 2 * groups + group


def _attend(recording: Recording, rows: Sequence[Row], kept: AttentionActivations, group: int) -> None:
    q, k, v = _sections(recording, group)
    heads = recording.heads(group)
    qkv = kept.qkv
    for row in rows:
        i = row.index
        out, stats = kept.out.new(row, group), kept.stats.new(row, group)
        for j in row.keys:
            recording.program.add(ops.attention(
                qkv[i, q], qkv[j, k], qkv[j, v], out, stats,
                seqs=row.seqs, heads=heads, first=j == row.keys[0], diagonal=j == i))  # fmt: skip


def _attend_cached(
    recording: Recording, cached: Sequence[Cached], rows: Sequence[Row], layer: str, kept: AttentionActivations, group: int
) -> None:
    """Fold the pages in order of number; each page takes in the keys and values of new rows before it is read."""
    q, k, v = _sections(recording, group)
    heads, qkv = recording.heads(group), kept.qkv
    for row in rows:
        i = row.index
        own, out, stats = cached[i], kept.out.new(row, group), kept.stats.new(row, group)
        pages = own.pages[layer, group]
        for number, page in enumerate(pages):
            recording.program.add(ops.attention_page(
                qkv[i, q], qkv[i, k], qkv[i, v], page, own.sequences, own.owners, out, stats,
                number=number, heads=heads, first=number == 0, last=number == len(pages) - 1))  # fmt: skip


def _attend_backward(
    recording: Recording, rows: Sequence[Row], layer: str, kept: AttentionActivations, dout: Grid, dqkv: Grid, group: int
) -> None:
    """Visit, for each key tile, all query tiles that meet it: dk and dv stay, dq streams by.

    Tiles of whole sequences meet only themselves.
    """
    q, k, v = _sections(recording, group)
    heads = recording.heads(group)
    qkv = kept.qkv
    delta = recording.per_head(f"{layer}.delta", 1)
    cut = [row for row in rows if not row.whole]
    for row in rows:
        if row.whole:
            i = row.index
            recording.program.add(ops.attention_backward_whole(
                qkv[i, q], qkv[i, k], qkv[i, v], kept.out[i, group], dout[i, group], kept.stats[i, group],
                delta.new(row, group), dqkv.new(row, q), dqkv.new(row, k), dqkv.new(row, v),
                seqs=row.seqs, heads=heads))  # fmt: skip
    for row in cut:
        i = row.index
        operation = ops.attention_delta(kept.out[i, group], dout[i, group], delta.new(row, group), heads=heads)
        recording.program.add(operation)
    for row in cut:
        j = row.index
        dk, dv = dqkv.new(row, k), dqkv.new(row, v)
        for i in row.queries:
            query = recording.rows[i]
            recording.program.add(ops.attention_backward(
                qkv[i, q], qkv[j, k], qkv[j, v], dout[i, group], kept.stats[i, group], delta[i, group],
                dqkv.new(query, q), dk, dv,
                seqs=row.seqs, heads=heads, first=j == query.keys[0], diagonal=j == i))  # fmt: skip
