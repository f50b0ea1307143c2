"""Launchers of layernorm.cu. The contracts are in asynctile/ops/layernorm.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, WARP, WARPS, chunks_of_rows, divide_up, lanes, patches, spans, suffix


def layernorm_stats(on: Context, x: Array, stats: Array, seen: int, last: bool, eps: float) -> None:
    """Merge the columns of x into (mean, sum of squared deviations); after the last, store (mean, 1 / deviation)."""
    rows, columns = x.shape
    on.launch("layernorm_stats", divide_up(rows, WARPS), BLOCK, x, stats, rows, columns, seen, last, eps)


def layernorm(on: Context, x: Array, stats: Array, gain: Array, bias: Array, y: Array) -> None:
    """y = (x - mean) rstd gain + bias."""
    rows, columns = x.shape
    on.launch(f"layernorm_{suffix(y)}", patches(rows, columns, lanes(y)), BLOCK, x, stats, gain, bias, y, rows, columns)


def layernorm_whole(on: Context, x: Array, gain: Array, bias: Array, stats: Array, y: Array, eps: float) -> None:
    """Compute stats = (mean, 1 / deviation) of whole rows, and y."""
    rows, columns = x.shape
    grid = divide_up(rows, WARPS)
    on.launch(f"layernorm_whole_{suffix(y)}", grid, BLOCK, x, gain, bias, stats, y, rows, columns, eps)


def layernorm_sums(on: Context, dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, accumulate: bool) -> None:
    """sums = row sums of (dinp gain, dinp gain xhat) (+ sums)."""
    rows, columns = x.shape
    on.launch("layernorm_sums", divide_up(rows, WARPS), BLOCK, dinp, x, stats, gain, sums, rows, columns, accumulate)


def layernorm_backward(
    on: Context, dinp: Array, x: Array, stats: Array, gain: Array, sums: Array, dx: Array, width: int, accumulate: bool
) -> None:
    """dx = rstd (dinp gain - sums[0] / width - xhat sums[1] / width) (+ dx)."""
    rows, columns = x.shape
    grid = patches(rows, columns, lanes(dx))
    on.launch("layernorm_backward", grid, BLOCK, dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate)


def layernorm_gradients(
    on: Context, dinp: Array, x: Array, stats: Array, dgain: Array, dbias: Array, accumulate: bool
) -> None:
    """dgain, dbias = column sums of dinp xhat and of dinp (+ themselves)."""
    rows, columns = x.shape
    width = spans(columns, lanes(x))
    chunks = chunks_of_rows(on, rows, width, 2 * columns)
    on.launch("layernorm_gradients", width * chunks, BLOCK, dinp, x, stats, on.scratch, rows, columns, chunks)
    grid = (divide_up(columns, WARP), 2)
    on.launch("layernorm_gradients_last", grid, BLOCK, on.scratch, dgain, dbias, chunks, columns, accumulate)


def layernorm_whole_backward(
    on: Context, dinp: Array, x: Array, stats: Array, gain: Array, dx: Array, dgain: Array, dbias: Array,
    accumulate: bool, begun: bool,
) -> None:  # fmt: skip
    """Compute dx, dgain and dbias from whole rows (+ themselves). The number of rows a block holds at once changes no bit."""
    rows, columns = x.shape
    line = 2 * 4 * 4 * divide_up(columns, 4)
    held = min(WARPS, on.shared // line - 1)
    if held < 1:
        # Shared memory is too small for one row and the column sums: make three passes, as for tiles with parts of rows.
        sums = Array(on.scratch.ptr, (rows, 2), x.dtype)
        layernorm_sums(on, dinp, x, stats, gain, sums, False)
        layernorm_backward(on, dinp, x, stats, gain, sums, dx, columns, accumulate)
        layernorm_gradients(on, dinp, x, stats, dgain, dbias, begun)
        return
    # Partial sums are float32, so the two sums of a column fit where the scratch has one double.
    chunks = chunks_of_rows(on, rows, 1, columns, least=WARPS)
    on.launch(
        "layernorm_whole_backward", chunks, BLOCK, dinp, x, stats, gain, dx, on.scratch, rows, columns, held, accumulate,
        shared=line * (held + 1),
    )  # fmt: skip
    grid = (divide_up(columns, WARP), 2)
    on.launch("layernorm_whole_backward_last", grid, BLOCK, on.scratch, dgain, dbias, chunks, columns, begun)
