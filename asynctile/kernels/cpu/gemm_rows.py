"""Products of few rows, each with the bits that it has alone; see asynctile/ops/gemm_rows.py for the contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import FLAG, ROW, TILE, kernel, piece

ZERO = np.float32(0.0)


@piece()
def _add_product(a: Any, b: Any, c: Any, tb: bool) -> None:
    """c += a op(b), over K in ascending order."""
    rows, columns = c.shape
    for i in range(rows):
        for j in range(columns):
            total = ZERO
            for k in range(a.shape[1]):
                total += a[i, k] * (b[j, k] if tb else b[k, j])
            c[i, j] += total


@kernel((TILE, TILE, TILE, FLAG, FLAG))
def gemm_rows(a: Any, b: Any, c: Any, tb: bool, accumulate: bool) -> None:
    """c = a op(b) (+ c)."""
    if not accumulate:
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                c[i, j] = ZERO
    _add_product(a, b, c, tb)


@kernel((TILE, TILE, TILE, TILE, FLAG))
def gemm_rows_onto(a: Any, b: Any, source: Any, c: Any, tb: bool) -> None:
    """c = a op(b) + source."""
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = source[i, j]
    _add_product(a, b, c, tb)


@kernel((TILE, TILE, ROW, TILE, FLAG, FLAG))
def gemm_rows_bias(a: Any, b: Any, bias: Any, c: Any, tb: bool, accumulate: bool) -> None:
    """c = a op(b) (+ c) + bias."""
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = c[i, j] + bias[j] if accumulate else bias[j]
    _add_product(a, b, c, tb)


@kernel((TILE, TILE, ROW, TILE, TILE, FLAG))
def gemm_rows_bias_onto(a: Any, b: Any, bias: Any, source: Any, c: Any, tb: bool) -> None:
    """c = a op(b) + source + bias."""
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = source[i, j] + bias[j]
    _add_product(a, b, c, tb)
