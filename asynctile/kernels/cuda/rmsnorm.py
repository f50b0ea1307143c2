"""Launchers of rmsnorm.cu. The contracts are in asynctile/ops/rmsnorm.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import (
    BLOCK,
    VECTOR,
    WARP,
    WARPS,
    chunks_of_rows,
    divide_up,
    lanes,
    patches,
    spans,
    suffix,
)


def rmsnorm_stats(on: Context, x: Array, stats: Array, seen: int, last: bool, width: int, eps: float) -> None:
    """Add the squares of the columns of x to stats; after the last, store 1 / sqrt(mean square + eps)."""
    rows, columns = x.shape
    on.launch("rmsnorm_stats", divide_up(rows, WARPS), BLOCK, x, stats, rows, columns, seen, last, width, eps)


def rmsnorm(on: Context, x: Array, stats: Array, gain: Array, y: Array) -> None:
    """y = x rstd gain."""
    rows, columns = x.shape
    on.launch(f"rmsnorm_{suffix(y)}", patches(rows, columns, lanes(y)), BLOCK, x, stats, gain, y, rows, columns)


def rmsnorm_whole(on: Context, x: Array, gain: Array, stats: Array, y: Array, eps: float) -> None:
    """Compute stats = rstd of whole rows, and y."""
    rows, columns = x.shape
    on.launch(f"rmsnorm_whole_{suffix(y)}", divide_up(rows, WARPS), BLOCK, x, gain, stats, y, rows, columns, eps)


def rmsnorm_sums(on: Context, dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, accumulate: bool) -> None:
    """sums = row sums of dinp gain xhat (+ sums)."""
    rows, columns = x.shape
    on.launch("rmsnorm_sums", divide_up(rows, WARPS), BLOCK, dinp, x, stats, gain, sums, rows, columns, accumulate)


def rmsnorm_backward(
    on: Context, dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, dx: Array, width: int, accumulate: bool
) -> None:
    """dx = rstd (dinp gain - xhat sums / width) (+ dx)."""
    rows, columns = x.shape
    grid = patches(rows, columns, lanes(dx))
    on.launch("rmsnorm_backward", grid, BLOCK, dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate)


def rmsnorm_gradients(on: Context, dinp: Array, x: Array, stats: Array, dgain: Array, accumulate: bool) -> None:
    """dgain = column sums of dinp xhat (+ dgain)."""
    rows, columns = x.shape
    width = spans(columns, lanes(x))
    chunks = chunks_of_rows(on, rows, width, columns)
    on.launch("rmsnorm_gradients", width * chunks, BLOCK, dinp, x, stats, on.scratch, rows, columns, chunks)
    on.launch("column_sums_last", divide_up(columns, WARP), BLOCK, on.scratch, dgain, chunks, columns, accumulate)


def rmsnorm_whole_backward(
    on: Context, dinp: Array, x: Array, stats: Array, gain: Array, dx: Array, dgain: Array, accumulate: bool, begun: bool
) -> None:
    """Compute dx and dgain from whole rows (+ themselves). The number of rows a block holds at once changes no bit."""
    rows, columns = x.shape
    line = VECTOR * divide_up(columns, 4)
    held = min(WARPS, (on.shared // line - 1) // 2)
    if held < 1:
        # Shared memory is too small for one row and the column sums: make three passes, as for tiles with parts of rows.
        sums = Array(on.scratch.ptr, (rows, 1), x.dtype)
        rmsnorm_sums(on, dinp, x, stats, gain, sums, False)
        rmsnorm_backward(on, dinp, x, stats, gain, sums, dx, columns, accumulate)
        rmsnorm_gradients(on, dinp, x, stats, dgain, begun)
        return
    # The partial sums are float32 and need half of this.
    chunks = chunks_of_rows(on, rows, 1, columns, least=WARPS)
    on.launch(
        "rmsnorm_whole_backward", chunks, BLOCK, dinp, x, stats, gain, dx, on.scratch, rows, columns, held, accumulate,
        shared=line * (2 * held + 1),
    )  # fmt: skip
    on.launch("rmsnorm_whole_backward_last", divide_up(columns, WARP), BLOCK, on.scratch, dgain, chunks, columns, begun)


def rmsnorm_heads(on: Context, x: Array, gain: Array, y: Array, heads: int, eps: float) -> None:
    """y = x rstd gain of each head by itself."""
    rows, columns = x.shape[0] * heads, gain.size
    on.launch(f"rmsnorm_heads_{suffix(x)}", divide_up(rows, WARPS), BLOCK, x, gain, y, rows, columns, eps)


def rmsnorm_heads_backward(
    on: Context, x: Array, gain: Array, dy: Array, dgain: Array, heads: int, eps: float, begun: bool
) -> None:
    """Turn dy into dx in place; dgain = sums of dy xhat over rows and heads (+ dgain)."""
    rows, columns = x.shape[0] * heads, gain.size
    chunks, shared = chunks_of_rows(on, rows, 1, columns), WARPS * VECTOR * divide_up(columns, 4)
    kernel = f"rmsnorm_heads_backward_{suffix(x)}"
    on.launch(kernel, chunks, BLOCK, x, gain, dy, on.scratch, rows, columns, eps, shared=shared)
    on.launch("column_sums_last", divide_up(columns, WARP), BLOCK, on.scratch, dgain, chunks, columns, begun)
