"""Matrix products by the context, and launchers of gemm.cu. The contracts are in asynctile/ops/gemm.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.elementwise import copy
from asynctile.kernels.cuda.grid import BLOCK, lanes, patches, suffix


def gemm(on: Context, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
    """c = op(a) op(b) (+ c)."""
    on.gemm(a, b, c, ta, tb, accumulate)


def gemm_bias(on: Context, a: Array, b: Array, bias: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
    """c = op(a) op(b) (+ c) + bias. If no library adds the bias within the product, a pass before it writes the bias to c."""
    if not on.gemm_onto(a, b, c, ta, tb, c if accumulate else None, _typed(on, bias, c)):
        _begin(on, bias, c, c, accumulate)
        on.gemm(a, b, c, ta, tb, True)


def gemm_onto(on: Context, a: Array, b: Array, source: Array, c: Array, ta: bool, tb: bool) -> None:
    """c = op(a) op(b) + source. If no library adds the source, it is copied to c first."""
    if not on.gemm_onto(a, b, c, ta, tb, source, None):
        copy(on, source, c)
        on.gemm(a, b, c, ta, tb, True)


def gemm_bias_onto(on: Context, a: Array, b: Array, bias: Array, source: Array, c: Array, ta: bool, tb: bool) -> None:
    """c = op(a) op(b) + source + bias. If no library adds both, one pass writes them to c first."""
    if not on.gemm_onto(a, b, c, ta, tb, source, _typed(on, bias, c)):
        _begin(on, bias, source, c, True)
        on.gemm(a, b, c, ta, tb, True)


def _typed(on: Context, bias: Array, c: Array) -> Array:
    """Return the bias in c's dtype, as libraries need it. The separate pass rounds the bias too, together with c."""
    if bias.dtype == c.dtype:
        return bias
    typed = Array(on.scratch.ptr, bias.shape, c.dtype)
    copy(on, bias, typed)
    return typed


def _begin(on: Context, bias: Array, source: Array, c: Array, onto: bool) -> None:
    rows, columns = c.shape
    grid = patches(rows, columns, lanes(c))
    on.launch(f"bias_{suffix(c)}", grid, BLOCK, bias, source, c, rows, columns, onto)
