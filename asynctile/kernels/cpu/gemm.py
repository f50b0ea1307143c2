"""Matrix product of tiles, also added onto a tile or with a bias row. The contract is in asynctile/ops/gemm.py.

OpenBLAS computes the product in the calling thread (blas.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.blas import sgemm
from asynctile.kernels.cpu.jit import FLAG, ROW, TILE, inline, kernel

ZERO, ONE = np.float32(0.0), np.float32(1.0)


@inline()
def _multiply(a: Any, b: Any, c: Any, ta: bool, tb: bool, beta: float) -> None:
    rows, columns = c.shape
    inner = a.shape[0] if ta else a.shape[1]
    sgemm(rows, columns, inner, ONE, a, 0, a.shape[1], ta, b, 0, b.shape[1], tb, beta, c, 0, columns)


@kernel((TILE, TILE, TILE, FLAG, FLAG, FLAG))
def gemm(a: Any, b: Any, c: Any, ta: bool, tb: bool, accumulate: bool) -> None:
    """c = op(a) op(b) (+ c)."""
    _multiply(a, b, c, ta, tb, ONE if accumulate else ZERO)


@kernel((TILE, TILE, TILE, TILE, FLAG, FLAG))
def gemm_onto(a: Any, b: Any, source: Any, c: Any, ta: bool, tb: bool) -> None:
    """c = op(a) op(b) + source. The source is written to c first, instead of zeros."""
    x, y = source.reshape(-1), c.reshape(-1)
    for i in range(x.size):
        y[i] = x[i]
    _multiply(a, b, c, ta, tb, ONE)


@kernel((TILE, TILE, ROW, TILE, FLAG, FLAG, FLAG))
def gemm_bias(a: Any, b: Any, bias: Any, c: Any, ta: bool, tb: bool, accumulate: bool) -> None:
    """c = op(a) op(b) (+ c) + bias. The bias is written to c first: it replaces the zeros that BLAS would write anyway."""
    rows, columns = c.shape
    for i in range(rows):
        if accumulate:
            for j in range(columns):
                c[i, j] += bias[j]
        else:
            for j in range(columns):
                c[i, j] = bias[j]
    _multiply(a, b, c, ta, tb, ONE)


@kernel((TILE, TILE, ROW, TILE, TILE, FLAG, FLAG))
def gemm_bias_onto(a: Any, b: Any, bias: Any, source: Any, c: Any, ta: bool, tb: bool) -> None:
    """c = op(a) op(b) + source + bias. Source and bias are written to c first, together."""
    rows, columns = c.shape
    for i in range(rows):
        for j in range(columns):
            c[i, j] = source[i, j] + bias[j]
    _multiply(a, b, c, ta, tb, ONE)
