"""Copy, add, fill, scale and column sums. The contracts are in asynctile/ops/elementwise.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.bf16 import bf16_of, float_of
from asynctile.kernels.cpu.jit import FLAG, HALF, REAL, ROW, TILE, kernel, piece

#: Columns summed at a time, in a float64 buffer of 8 KiB.
COLUMNS = 1024
#: Rows summed in float32 before their sum is added to the float64 sum.
ROWS = 8


@kernel((ROW, ROW), (TILE, TILE), (HALF, TILE))
def copy(source: Any, target: Any) -> None:
    """target = source, in float32."""
    x, y = source.reshape(-1), target.reshape(-1)
    for i in range(x.size):
        y[i] = float_of(x[i])


@kernel((ROW, ROW), (TILE, TILE))
def add(source: Any, target: Any) -> None:
    """target += source."""
    x, y = source.reshape(-1), target.reshape(-1)
    for i in range(x.size):
        y[i] += x[i]


@kernel((ROW, REAL), (TILE, REAL))
def fill(target: Any, value: float) -> None:
    """target = value, rounded to float32."""
    y, rounded = target.reshape(-1), np.float32(value)
    for i in range(y.size):
        y[i] = rounded


@kernel((ROW, REAL), (TILE, REAL))
def scale(target: Any, factor: float) -> None:
    """target *= factor, rounded to float32."""
    y, rounded = target.reshape(-1), np.float32(factor)
    for i in range(y.size):
        y[i] *= rounded


@piece()
def add_eight(total: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> None:
    for j in range(total.size):
        total[j] += ((a[j] + b[j]) + (c[j] + d[j])) + ((e[j] + f[j]) + (g[j] + h[j]))


@piece()
def add_one(total: Any, row: Any) -> None:
    for j in range(total.size):
        total[j] += row[j]


@piece()
def _column_sums(x: Any, sums: Any, accumulate: bool) -> None:
    rows, columns = x.shape
    buffer = np.empty(min(COLUMNS, columns), np.float64)
    for at in range(0, columns, COLUMNS):
        end = min(at + COLUMNS, columns)
        part, total = sums[at:end], buffer[: end - at]
        for j in range(total.size):
            total[j] = part[j] if accumulate else 0.0
        whole = rows - rows % ROWS
        for i in range(0, whole, ROWS):
            add_eight(total, x[i, at:end], x[i + 1, at:end], x[i + 2, at:end], x[i + 3, at:end],
                      x[i + 4, at:end], x[i + 5, at:end], x[i + 6, at:end], x[i + 7, at:end])  # fmt: skip
        for i in range(whole, rows):
            add_one(total, x[i, at:end])
        for j in range(total.size):
            part[j] = total[j]


@kernel((TILE, ROW, FLAG))
def column_sums(x: Any, sums: Any, accumulate: bool) -> None:
    """sums = column sums of x (+ sums)."""
    _column_sums(x, sums, accumulate)


@kernel((TILE, ROW, HALF, FLAG))
def column_sums_copy(x: Any, sums: Any, copy: Any, accumulate: bool) -> None:
    """sums = column sums of x (+ sums), copy = x in bf16."""
    source, target = x.reshape(-1), copy.reshape(-1)
    for i in range(source.size):
        target[i] = bf16_of(source[i])
    _column_sums(x, sums, accumulate)
