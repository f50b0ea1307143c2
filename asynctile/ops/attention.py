"""Causal multi-head attention tile by tile, with a running softmax: no T x T matrix of a head is ever kept.

A column tile holds g whole heads of hs columns. Query row tile i meets the key/value row tiles j = 0, 1, ..., i of the same
sequences, in this order. On the diagonal (j = i) tokens see only themselves and earlier tokens; below it they see all. If a row
tile holds several whole sequences (seqs > 1), there is only the diagonal, and sequences never see each other. Scores are scaled
by 1 / sqrt(hs). The recurrence is that of FlashAttention (arXiv 2205.14135).

Keys and values may have fewer heads than queries: c heads, where c divides g (grouped-query attention, arXiv 2305.13245). Query
head h then reads key head h // (g / c). The gradient of a key head is the sum over its query heads, in ascending order.

If a row tile has `ExampleStarts`, its sequences hold several examples, one behind the other, and a query sees the keys of its
own example alone, up to itself. So the examples of a row get what each would get alone. Law: where positions count on from the
start of each sequence, the results have the bits of the kernels for rows of one example (not those of a library that a device
may use for these).
"""

from __future__ import annotations

from typing import NamedTuple

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


class ExampleStarts(NamedTuple):
    """Where a query tile's examples begin: query r sees the keys from apart + r - positions[r] on.

    positions (Ri,) int32: 0 where an example begins, and one more than the row before anywhere else. apart: how many tokens the
    first query of a sequence's row tile stands behind the first key of the key tile, 0 on the diagonal.
    """

    positions: Tile
    apart: int


def attention(
    q: Tile, k: Tile, v: Tile, out: Tile, stats: Tile, *, seqs: int, heads: int, first: bool, diagonal: bool,
    packed: ExampleStarts | None = None,
) -> Operation:  # fmt: skip
    """Fold keys k and values v (Rj, c hs) into out (Ri, g hs) for queries q (Ri, g hs), all T.

    stats (2 g, Ri): row h is the running maximum of head h, row g + h its running sum. `first` (j = 0) starts. The diagonal is
    the last: it divides by the sum and leaves the log-sum-exp in rows 0 .. g - 1 (rows g .. 2 g - 1 are then unspecified).
    A packed query that has seen no key yet has a sum of 0, and a maximum below any score.
    Kernels: attention(q, k, v, out, stats, seqs, heads, first, diagonal) and
    attention_packed(q, k, v, positions, out, stats, seqs, heads, first, diagonal, apart).
    """
    kernel = "attention_packed" if packed else "attention"
    expect(kernel, out, q.shape)
    expect(kernel, v, k.shape)
    expect_groups(kernel, q, k, heads)
    expect(kernel, stats, (2 * heads, q.shape[0]))
    positions, apart = _examples(kernel, q, packed)
    operands, access = (q, k, v, *positions, out, stats), "rrr" + "r" * len(positions) + ("ww" if first else "uu")
    flops = flops_of(q, k, seqs, diagonal, products=2)
    return Operation(kernel, operands, access, (seqs, heads, first, diagonal, *apart), flops)


def attention_delta(out: Tile, dout: Tile, delta: Tile, *, heads: int) -> Operation:
    """Set delta (g, Ri) to the row sums of out dout, both T, over each head.

    Kernel: attention_delta(out, dout, delta, heads).
    """
    expect("attention_delta", dout, out.shape)
    expect("attention_delta", delta, (heads, out.shape[0]))
    return Operation("attention_delta", (out, dout, delta), "rrw", (heads,))


def attention_backward(
    q: Tile,
    k: Tile,
    v: Tile,
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
    packed: ExampleStarts | None = None,
) -> Operation:
    """Add the contributions of queries i and keys j to dq (Ri, g hs), dk and dv (Rj, c hs). All but stats and delta are T.

    P = exp(q k^T / sqrt(hs) - lse); dv += P^T dout; dS = P (dout v^T - delta) / sqrt(hs); dq += dS k; dk += dS^T q.
    For a query that sees only one key, the first of a sequence (`first` and on the diagonal) or of a packed example, dS is
    exactly 0. Computed, it would be rounding noise, which AdamW would scale up to the size of any gradient.
    `first` (j = 0) overwrites dq. The diagonal, the first i that key tile j meets, overwrites dk and dv.
    Kernels: attention_backward(q, k, v, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal) and
    attention_packed_backward(q, k, v, positions, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal, apart).
    """
    kernel = "attention_packed_backward" if packed else "attention_backward"
    expect(kernel, dq, q.shape)
    for tile in (v, dk, dv):
        expect(kernel, tile, k.shape)
    expect_groups(kernel, q, k, heads)
    positions, apart = _examples(kernel, q, packed)
    access = "rrrrrr" + "r" * len(positions) + ("w" if first else "u") + ("ww" if diagonal else "uu")
    operands = (q, k, v, *positions, dout, stats, delta, dq, dk, dv)
    flops = flops_of(q, k, seqs, diagonal, products=5)
    return Operation(kernel, operands, access, (seqs, heads, first, diagonal, *apart), flops)


def attention_backward_whole(
    q: Tile,
    k: Tile,
    v: Tile,
    out: Tile,
    dout: Tile,
    stats: Tile,
    delta: Tile,
    dq: Tile,
    dk: Tile,
    dv: Tile,
    *,
    seqs: int,
    heads: int,
) -> Operation:
    """Compute dq, dk and dv of tiles that hold whole sequences.

    The same as attention_delta, then attention_backward with `first` and on the diagonal, as one operation for libraries that
    need `out`. delta (g, R) is workspace, unspecified afterwards.
    Kernel: attention_backward_whole(q, k, v, out, dout, stats, delta, dq, dk, dv, seqs, heads).
    """
    for tile in (out, dout, dq):
        expect("attention_backward_whole", tile, q.shape)
    for tile in (k, v, dk, dv):
        expect("attention_backward_whole", tile, (q.shape[0], k.shape[1]))
    expect_groups("attention_backward_whole", q, k, heads)
    expect("attention_backward_whole", delta, (heads, q.shape[0]))
    operands = (q, k, v, out, dout, stats, delta, dq, dk, dv)
    flops = flops_of(q, k, seqs, diagonal=True, products=5)
    return Operation("attention_backward_whole", operands, "rrrrrrwwww", (seqs, heads), flops)


def _examples(kernel: str, q: Tile, packed: ExampleStarts | None) -> tuple[tuple[Tile, ...], tuple[int, ...]]:
    """Return the operand and the param that a kernel of packed rows has in addition; none for the other kernels."""
    if packed is None:
        return (), ()
    expect(kernel, packed.positions, q.shape[:1])
    return (packed.positions,), (packed.apart,)


def expect_groups(verb: str, q: Tile, k: Tile, heads: int) -> None:
    """Raise ValueError if q does not have whole columns for each of its heads, or k no number of heads that divides them."""
    columns = q.shape[1]
    if columns % heads:
        raise ValueError(f"{verb}: {q.name} has {columns} columns, expected whole columns for each of {heads} heads")
    hs = columns // heads
    if k.shape[1] % hs or not k.shape[1] or heads % (k.shape[1] // hs):
        raise ValueError(
            f"{verb}: {k.name} has {k.shape[1]} columns, expected heads of {hs} columns, of a number that divides {heads}"
        )


def flops_of(q: Tile, k: Tile, seqs: int, diagonal: bool, products: int) -> int:
    """Return the FLOPs of so many products of each query with each key that it may see."""
    pairs = q.shape[0] * k.shape[0] // seqs
    return 2 * products * pairs * q.shape[1] // (2 if diagonal else 1)
