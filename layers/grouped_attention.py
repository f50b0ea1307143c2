"""Causal self-attention of one group of heads: from the tiles of q, k and v to those of the output, and back.

A family projects q, k and v of a group, calls this, and projects the output. Keys and values may have fewer heads than queries.
asynctile/ops/attention.py defines what a pair of tiles computes.

Legend: R rows of a row tile, g heads in a group, c heads of its keys, hs columns of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from asynctile import ops
from asynctile.layers.recording import Cached, Grid, Recording
from asynctile.layers.rows import Row
from asynctile.ops.attention import ExampleStarts
from asynctile.storage.tile import Tile


class Column(NamedTuple):
    """One column of the tiles of a grid."""

    grid: Grid
    number: int

    def at(self, row: int) -> Tile:
        """Return the tile of a row tile, by its index."""
        return self.grid[row, self.number]

    def new(self, row: Row) -> Tile:
        """Return a tile that is about to be overwritten whole."""
        return self.grid.new(row, self.number)


class QKV(NamedTuple):
    """Queries (R, g hs), keys and values (R, c hs) of one group of heads, or their gradients."""

    q: Column
    k: Column
    v: Column


def forward(
    recording: Recording, rows: Sequence[Row], layer: int, group: int, qkv: QKV, out: Grid, stats: Grid
) -> None:
    """Compute out (R, g hs) of a group, and stats (2 g, R) with the log-sum-exp, by row tile."""
    if recording.cached is None:
        _forward_tiles(recording, rows, group, qkv, out, stats)
    else:
        _forward_pages(recording, recording.cached, rows, layer, group, qkv, out, stats)


def _forward_tiles(recording: Recording, rows: Sequence[Row], group: int, qkv: QKV, out: Grid, stats: Grid) -> None:
    for row in rows:
        to, numbers = out.new(row, group), stats.new(row, group)
        for j in row.keys:
            q, k, v = qkv.q.at(row.index), qkv.k.at(j), qkv.v.at(j)
            recording.program.add(ops.attention(q, k, v, to, numbers, **_where(recording, group, row, recording.rows[j])))


def _forward_pages(
    recording: Recording,
    cached: Sequence[Cached],
    rows: Sequence[Row],
    layer: int,
    group: int,
    qkv: QKV,
    out: Grid,
    stats: Grid,
) -> None:
    """Fold the pages in order of number; each page takes in the keys and values of new rows before it is read."""
    heads = recording.heads(group)
    for row in rows:
        i = row.index
        own, to, numbers = cached[i], out.new(row, group), stats.new(row, group)
        pages = own.pages[layer, group]
        for number, page in enumerate(pages):
            recording.program.add(ops.attention_page(
                qkv.q.at(i), qkv.k.at(i), qkv.v.at(i), page, own.sequences, own.owners, to, numbers,
                number=number, heads=heads, first=number == 0, last=number == len(pages) - 1))  # fmt: skip


def backward(
    recording: Recording,
    rows: Sequence[Row],
    layer: int,
    group: int,
    qkv: QKV,
    out: Grid,
    stats: Grid,
    dout: Grid,
    dqkv: QKV,
) -> None:
    """Compute dqkv of a group from dout (R, g hs), the gradient of its output.

    For each key tile, visit all query tiles that meet it: dk and dv stay, dq streams by. Tiles of whole sequences meet only
    themselves. They take one operation, except for packed sequences, which no library computes.
    """
    heads, packed = recording.heads(group), recording.rows.packed
    delta = recording.per_head(f"h.{layer}.attn.delta", 1)
    cut = [row for row in rows if packed or not row.whole]
    for row in rows:
        if row.whole and not packed:
            i = row.index
            recording.program.add(ops.attention_backward_whole(
                qkv.q.at(i), qkv.k.at(i), qkv.v.at(i), out[i, group], dout[i, group], stats[i, group],
                delta.new(row, group), dqkv.q.new(row), dqkv.k.new(row), dqkv.v.new(row),
                seqs=row.seqs, heads=heads))  # fmt: skip
    for row in cut:
        i = row.index
        operation = ops.attention_delta(out[i, group], dout[i, group], delta.new(row, group), heads=heads)
        recording.program.add(operation)
    for row in cut:
        j = row.index
        dk, dv = dqkv.k.new(row), dqkv.v.new(row)
        for i in row.queries:
            query = recording.rows[i]
            recording.program.add(ops.attention_backward(
                qkv.q.at(i), qkv.k.at(j), qkv.v.at(j), dout[i, group], stats[i, group], delta[i, group],
                dqkv.q.new(query), dk, dv, **_where(recording, group, query, row)))  # fmt: skip


def _where(recording: Recording, group: int, query: Row, key: Row) -> dict[str, Any]:
    """Return how the queries of a row tile meet the keys of another."""
    packed = ExampleStarts(recording.positions[query.index], query.start - key.start) if recording.rows.packed else None
    return {"seqs": query.seqs, "heads": recording.heads(group), "first": key.index == query.keys[0],
            "diagonal": key.index == query.index, "packed": packed}  # fmt: skip
