"""Launchers of attention*.cu. The contracts are in asynctile/ops/attention.py."""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, VECTOR, divide_up, suffix

#: Threads of a block, except in attention_delta.
THREADS = 128
#: Head sizes for which the tensor-core kernels are compiled. Other sizes are padded to the next one.
PADDED = (32, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class Variant:
    """A family of kernels for one dtype and head size.

    suffix: ends their names. rows: rows that a block owns. shared, shared_backward: bytes of dynamic shared memory.
    """

    suffix: str
    rows: int
    shared: int
    shared_backward: int


def way(q: Array, hs: int) -> Variant:
    """Choose tensor cores where dtype and head size allow, plain arithmetic otherwise.

    The sizes match attention_fragments.cu and attention_plain.cu.
    """
    if q.dtype.kind != "u" or hs % 8 or hs > PADDED[-1]:
        block = 64 * 68 * 4
        return Variant(f"plain_{suffix(q)}", 64, 3 * block, 5 * block)
    padded = next(size for size in PADDED if hs <= size)
    rows, passing = (128, 64) if padded <= 64 else (64, 32)
    row = 2 * (padded + 8)
    return Variant(f"mma_{padded}", rows, (rows + 4 * 64) * row, (2 * rows + 4 * passing) * row + 4 * passing * 4)


def attention(
    on: Context, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int, first: bool, diagonal: bool
) -> None:
    """Fold a tile of keys and values into out and stats, as asynctile/ops/attention.py says.

    first: this is the first key tile of these queries, so out and stats start anew. diagonal: it is the last, under the
    causal mask. Where both hold, tiles contain whole sequences, and cuDNN computes them if it supports their shape and
    dtype. This project's own kernel does the rest.
    """
    if not (first and diagonal and on.attend(q, k, v, out, stats, seqs, heads)):
        _attend(on, "attention", (q, k, v, out, stats), (), seqs, heads, first, diagonal)


def attention_packed(
    on: Context, q: Array, k: Array, v: Array, positions: Array, out: Array, stats: Array,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Fold a tile of keys and values into out and stats for rows of several examples. Always by own kernels."""
    _attend(on, "attention_packed", (q, k, v, positions, out, stats), (apart,), seqs, heads, first, diagonal)


def _attend(
    on: Context, kernel: str, operands: tuple[Array, ...], places: tuple[int, ...], seqs: int, heads: int, first: bool,
    diagonal: bool,
) -> None:  # fmt: skip
    """Launch a kernel of the forward pass. operands: beginning with q and k."""
    by, sizes = _sized(operands, seqs, heads)
    grid = (heads * seqs, divide_up(sizes[0], by.rows))
    on.launch(f"{kernel}_{by.suffix}", grid, THREADS, *operands, *places, *sizes, first, diagonal, shared=by.shared)


def _sized(operands: tuple[Array, ...], seqs: int, heads: int) -> tuple[Variant, tuple[int, int, int, int, int]]:
    """Return the kernels for these operands, and the rows and keys of a sequence, heads of each, and columns of a head."""
    q, k = operands[:2]
    hs = q.shape[1] // heads
    return way(q, hs), (q.shape[0] // seqs, k.shape[0] // seqs, heads, k.shape[1] // hs, hs)


def attention_delta(on: Context, out: Array, dout: Array, delta: Array, heads: int) -> None:
    """Compute delta = row sums of out dout, head by head."""
    rows, hs = out.shape[0], out.shape[1] // heads
    per_thread = VECTOR // out.dtype.itemsize
    lanes = 1
    while lanes < 32 and lanes * (per_thread if hs % per_thread == 0 else 1) < hs:
        lanes *= 2
    grid = (heads, divide_up(rows, BLOCK // lanes))
    on.launch(f"attention_delta_{suffix(out)}", grid, BLOCK, out, dout, delta, rows, hs, lanes)


def attention_backward(
    on: Context, q: Array, k: Array, v: Array, dout: Array, stats: Array, delta: Array, dq: Array, dk: Array, dv: Array,
    seqs: int, heads: int, first: bool, diagonal: bool,
) -> None:  # fmt: skip
    """Add the contributions of a pair of query and key tiles to dq, dk and dv, as asynctile/ops/attention.py says.

    Always by own kernels; only attention_backward_whole may use cuDNN.

    first: dq is overwritten instead. diagonal: dk and dv are overwritten instead, under the causal mask. stats: the
    log-sum-exp that `attention` left. delta: from attention_delta.
    """
    operands = (q, k, v, dout, stats, delta)
    _attend_backward(on, "attention_backward", operands, (dq, dk, dv), (), seqs, heads, first, diagonal)


def attention_packed_backward(
    on: Context, q: Array, k: Array, v: Array, positions: Array, dout: Array, stats: Array, delta: Array, dq: Array, dk: Array,
    dv: Array, seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Add the contributions of a pair of tiles to dq, dk and dv for rows of several examples, as `attention_backward` does."""
    operands = (q, k, v, positions, dout, stats, delta)
    _attend_backward(on, "attention_packed_backward", operands, (dq, dk, dv), (apart,), seqs, heads, first, diagonal)


def _attend_backward(
    on: Context, kernel: str, operands: tuple[Array, ...], gradients: tuple[Array, Array, Array], places: tuple[int, ...],
    seqs: int, heads: int, first: bool, diagonal: bool,
) -> None:  # fmt: skip
    """Launch the two kernels of the backward pass: one owns keys, the other queries. operands: beginning with q and k."""
    by, sizes = _sized(operands, seqs, heads)
    rows, keys, _, key_heads, _ = sizes
    dq, dk, dv = gradients
    for owner, results, owners, owned in (("keys", (dk, dv), key_heads, keys), ("queries", (dq,), heads, rows)):
        grid, numbers = (owners * seqs, divide_up(owned, by.rows)), (*places, *sizes, first, diagonal)
        on.launch(f"{kernel}_{owner}_{by.suffix}", grid, THREADS, *operands, *results, *numbers, shared=by.shared_backward)


def attention_backward_whole(
    on: Context, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, delta: Array, dq: Array, dk: Array,
    dv: Array, seqs: int, heads: int,
) -> None:  # fmt: skip
    """Compute dq, dk and dv of whole sequences: by cuDNN if it supports their shape and dtype, otherwise by own kernels.

    delta is workspace.
    """
    if on.attend_backward(q, k, v, out, dout, stats, dq, dk, dv, seqs, heads):
        return
    attention_delta(on, out, dout, delta, heads)
    attention_backward(on, q, k, v, dout, stats, delta, dq, dk, dv, seqs, heads, True, True)
