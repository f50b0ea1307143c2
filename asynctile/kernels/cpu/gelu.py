"""GELU (tanh form) and its derivative. The contract is in asynctile/ops/gelu.py.

0.5 (1 + tanh(u)) equals 1 / (1 + exp(-2 u)). So no tanh is computed, and no digits are lost where tanh is near -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.elementwise import COLUMNS, ROWS, add_eight, add_one
from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import FLAG, FUSE, ROW, TILE, kernel, piece

#: -2 u = x (SLOPE + CUBIC x^2)
SLOPE = np.float32(-2.0 * np.sqrt(2.0 / np.pi))
CUBIC = np.float32(-2.0 * np.sqrt(2.0 / np.pi) * 0.044715)
CUBIC_3 = np.float32(3.0 * -2.0 * np.sqrt(2.0 / np.pi) * 0.044715)
ONE = np.float32(1.0)


@kernel((TILE, TILE), fastmath=FUSE)
def gelu(x: Any, y: Any) -> None:
    """y = gelu(x)."""
    source, target = x.reshape(-1), y.reshape(-1)
    for i in range(source.size):
        value = source[i]
        target[i] = value / (ONE + exp(value * (SLOPE + CUBIC * (value * value))))


@piece(FUSE)
def _pass_and_bend(source: Any, y: Any, target: Any) -> None:
    for i in range(source.size):
        value = source[i]
        square = value * value
        whole = ONE + exp(value * (SLOPE + CUBIC * square))
        y[i] = value / whole
        share = ONE / whole
        bend = value * (SLOPE + CUBIC_3 * square)
        target[i] *= share - share * (ONE - share) * bend


@kernel((TILE, TILE, TILE, ROW, FLAG))
def gelu_and_backward(x: Any, y: Any, grad: Any, sums: Any, accumulate: bool) -> None:
    """y = gelu(x); grad *= gelu'(x); sums = column sums of grad (+ sums), in the order of column_sums."""
    rows, columns = x.shape
    buffer = np.empty(min(COLUMNS, columns), np.float64)
    for at in range(0, columns, COLUMNS):
        end = min(at + COLUMNS, columns)
        total = buffer[: end - at]
        for j in range(total.size):
            total[j] = sums[at + j] if accumulate else 0.0
        whole = rows - rows % ROWS
        for i in range(0, whole, ROWS):
            for r in range(i, i + ROWS):
                _pass_and_bend(x[r, at:end], y[r, at:end], grad[r, at:end])
            add_eight(total, grad[i, at:end], grad[i + 1, at:end], grad[i + 2, at:end], grad[i + 3, at:end],
                      grad[i + 4, at:end], grad[i + 5, at:end], grad[i + 6, at:end], grad[i + 7, at:end])  # fmt: skip
        for i in range(whole, rows):
            _pass_and_bend(x[i, at:end], y[i, at:end], grad[i, at:end])
            add_one(total, grad[i, at:end])
        for j in range(total.size):
            sums[at + j] = total[j]
