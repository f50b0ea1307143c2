"""Launchers of gemm_rows.cu. The contracts are in asynctile/ops/gemm_rows.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, divide_up, suffix

#: Rows for which a block reads the weights once, and a block's columns with b as stored and with b transposed, as in
#: gemm_rows.cu.
ROWS, COLUMNS, TRANSPOSED_COLUMNS = 8, 32, 16


def gemm_rows(on: Context, a: Array, b: Array, c: Array, tb: bool, accumulate: bool) -> None:
    """c = a op(b) (+ c)."""
    _multiply(on, a, b, None, c if accumulate else None, c, tb)


def gemm_rows_bias(on: Context, a: Array, b: Array, bias: Array, c: Array, tb: bool, accumulate: bool) -> None:
    """c = a op(b) (+ c) + bias."""
    _multiply(on, a, b, bias, c if accumulate else None, c, tb)


def gemm_rows_onto(on: Context, a: Array, b: Array, source: Array, c: Array, tb: bool) -> None:
    """c = a op(b) + source."""
    _multiply(on, a, b, None, source, c, tb)


def gemm_rows_bias_onto(on: Context, a: Array, b: Array, bias: Array, source: Array, c: Array, tb: bool) -> None:
    """c = a op(b) + source + bias."""
    _multiply(on, a, b, bias, source, c, tb)


def _multiply(on: Context, a: Array, b: Array, bias: Array | None, source: Array | None, c: Array, tb: bool) -> None:
    (rows, columns), inner = c.shape, a.shape[1]
    kernel = f"gemm_rows_{'transposed_' if tb else ''}{suffix(b)}_{suffix(c)}"
    grid = (divide_up(columns, TRANSPOSED_COLUMNS if tb else COLUMNS), divide_up(rows, ROWS))
    # For a missing operand the kernel gets a pointer that it does not read.
    operands = (a, b, bias or c, source or c, c)
    on.launch(kernel, grid, BLOCK, *operands, rows, columns, inner, bias is not None, source is not None)
