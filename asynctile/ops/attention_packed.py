"""Causal attention of rows that hold several examples, one behind the other. Rows of one example use attention.py.

Legend, tiles and recurrence are those of attention.py. In addition, positions (R,) int32 of the query rows: 0 where an example
begins, and one more than the row before anywhere else. A query sees the keys of its own example alone, up to itself. So the
examples of a row get what each would get alone.

The first query of a sequence's row tile stands `apart` tokens behind the first key of the key tile: 0 on the diagonal. Query r
therefore sees the keys from apart + r - positions[r] on.

Law: where positions count on from the start of each sequence, the results have the bits of attention.py's kernels (not those of
a library that a device may use for these).
"""

from __future__ import annotations

from asynctile.ops.attention import expect_groups, flops_of
from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def attention_packed(
    q: Tile, k: Tile, v: Tile, positions: Tile, out: Tile, stats: Tile, *, seqs: int, heads: int, first: bool, diagonal: bool,
    apart: int,
) -> Operation:  # fmt: skip
    """Fold keys k and values v (Rj, c hs) into out (Ri, g hs) for queries q (Ri, g hs), all T, as `attention` does.

    positions (Ri,): of the queries. A query that has seen no key yet has a sum of 0, and a maximum below any score, in stats.
    Kernel: attention_packed(q, k, v, positions, out, stats, seqs, heads, first, diagonal, apart).
    """
    expect("attention_packed", out, q.shape)
    expect("attention_packed", v, k.shape)
    expect_groups("attention_packed", q, k, heads)
    expect("attention_packed", positions, q.shape[:1])
    expect("attention_packed", stats, (2 * heads, q.shape[0]))
    access = "rrrr" + ("ww" if first else "uu")
    operands, params = (q, k, v, positions, out, stats), (seqs, heads, first, diagonal, apart)
    return Operation("attention_packed", operands, access, params, flops_of(q, k, seqs, diagonal, products=2))


def attention_packed_backward(
    q: Tile,
    k: Tile,
    v: Tile,
    positions: Tile,
    dout: Tile,
    stats: Tile,
    delta: Tile,
    dq: Tile,
    dk: Tile,
    dv: Tile,
    *,
    seqs: int,
    heads: int,
    first: bool,
    diagonal: bool,
    apart: int,
) -> Operation:
    """Add the contributions of queries i and keys j to dq, dk and dv, as `attention_backward` does.

    positions (Ri,): of the queries. A query at position 0 sees only itself, and the gradient of its score is exactly 0.
    Kernel: attention_packed_backward(q, k, v, positions, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal, apart).
    """
    expect("attention_packed_backward", dq, q.shape)
    for tile in (v, dk, dv):
        expect("attention_packed_backward", tile, k.shape)
    expect_groups("attention_packed_backward", q, k, heads)
    expect("attention_packed_backward", positions, q.shape[:1])
    access = "rrrrrrr" + ("w" if first else "u") + ("ww" if diagonal else "uu")
    operands = (q, k, v, positions, dout, stats, delta, dq, dk, dv)
    params = (seqs, heads, first, diagonal, apart)
    return Operation("attention_packed_backward", operands, access, params, flops_of(q, k, seqs, diagonal, products=5))
