"""Products of few rows, each with the bits that it has alone. The contract is in asynctile/ops/gemm_rows.py.

A product runs by columns of blocks (vectors.py), each over all rows, so that weights are read from memory once and then come
from a cache. One row is bound by memory, many rows by arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import FLAG, ROW, TILE, inline, kernel, piece
from asynctile.kernels.cpu.vectors import (
    NARROW,
    NARROW_TRANSPOSED,
    ONE_TRANSPOSED,
    SOME,
    WIDE,
    WIDE_TRANSPOSED,
    add_block,
    block_of,
)

ZERO = np.float32(0.0)


@inline()
def start_of(x: Any) -> Any:
    """Return the address of an array, signed. One type for all addresses means one compiled version of each function."""
    return np.int64(x.ctypes.data)


@inline()
def on(address: int, numbers: int) -> int:
    """Return the address of the float32 that stands `numbers` elements further on."""
    return address + 4 * numbers


@piece()
def add_times(rows: int, columns: int, inner: int, a: int, a_step: int, b: int, b_step: int, c: int, c_step: int) -> None:
    """Add to c (rows, columns) the product a (rows, inner) b (inner, columns).

    All are float32 at addresses; `_step` is the distance from row to row, in elements.
    """
    at = 0
    width, most = block_of(WIDE)
    while rows <= most and at + width <= columns:
        add_block(WIDE, width, rows, inner, a, a_step, on(b, at), b_step, on(c, at), c_step)
        at += width
    width, most = block_of(NARROW)
    while at + width <= columns:
        for i in range(0, rows, most):
            x, y = on(a, i * a_step), on(c, i * c_step + at)
            add_block(NARROW, width, min(most, rows - i), inner, x, a_step, on(b, at), b_step, y, c_step)
        at += width
    width, most = block_of(SOME)
    while at < columns:
        some = min(width, columns - at)
        for i in range(0, rows, most):
            x, y = on(a, i * a_step), on(c, i * c_step + at)
            add_block(SOME, some, min(most, rows - i), inner, x, a_step, on(b, at), b_step, y, c_step)
        at += some


@piece()
def add_times_transposed(
    rows: int, columns: int, inner: int, a: int, a_step: int, b: int, b_step: int, c: int, c_step: int
) -> None:
    """Add to c (rows, columns) the product a (rows, inner) b^T, where b is (columns, inner)."""
    at = 0
    width, most = block_of(WIDE_TRANSPOSED)
    while rows <= most and at + width <= columns:
        add_block(WIDE_TRANSPOSED, width, rows, inner, a, a_step, on(b, at * b_step), b_step, on(c, at), c_step)
        at += width
    width, most = block_of(NARROW_TRANSPOSED)
    while at + width <= columns:
        for i in range(0, rows, most):
            x, y, count = on(a, i * a_step), on(c, i * c_step + at), min(most, rows - i)
            add_block(NARROW_TRANSPOSED, width, count, inner, x, a_step, on(b, at * b_step), b_step, y, c_step)
        at += width
    width, most = block_of(ONE_TRANSPOSED)
    while at < columns:
        for i in range(0, rows, most):
            x, y, count = on(a, i * a_step), on(c, i * c_step + at), min(most, rows - i)
            add_block(ONE_TRANSPOSED, width, count, inner, x, a_step, on(b, at * b_step), b_step, y, c_step)
        at += width


@piece()
def _add_product(a: Any, b: Any, c: Any, tb: bool) -> None:
    (rows, columns), inner = c.shape, a.shape[1]
    left, right, result = start_of(a), start_of(b), start_of(c)
    if tb:
        add_times_transposed(rows, columns, inner, left, inner, right, inner, result, columns)
    else:
        add_times(rows, columns, inner, left, inner, right, columns, result, columns)


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
