"""Matrix products by the context, and the launch of gemm.cu; see asynctile/ops/gemm.py for the contracts."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, lanes, patches, suffix


def gemm(on: Context, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
    """c = op(a) op(b) (+ c)."""
    on.gemm(a, b, c, ta, tb, accumulate)


def gemm_bias(on: Context, a: Array, b: Array, bias: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
    """c = op(a) op(b) (+ c) + bias. Where no library adds it on the way out, the bias goes in first, by a pass of its own."""
    if on.gemm_onto(a, b, c, ta, tb, c if accumulate else None, bias):
        return
    rows, columns = c.shape
    on.launch(f"bias_{suffix(c)}", patches(rows, columns, lanes(c)), BLOCK, bias, c, rows, columns, accumulate)
    on.gemm(a, b, c, ta, tb, True)
