"""Root mean square normalization, forward and backward, by column tiles. The contracts are in asynctile/ops/rmsnorm.py.

Heads are computed as rows: a tile (R, g hs) is one of R g rows of hs columns. What they call is inlined, because a call takes
as long as a short row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.elementwise import ROWS, add_one
from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, REAL, REDUCE, ROW, TILE, inline, kernel, piece
from asynctile.kernels.cpu.layernorm import COLUMNS

ZERO = np.float32(0.0)


@inline(REDUCE)
def _squares(row: Any) -> Any:
    total = ZERO
    for j in range(row.size):
        total += row[j] * row[j]
    return total


@inline()
def _rstd(squares: float, width: int, eps: float) -> Any:
    return np.float32(1.0 / np.sqrt(np.float64(squares) / width + eps))


@kernel((TILE, TILE, COUNT, FLAG, COUNT, REAL))
def rmsnorm_stats(x: Any, stats: Any, seen: int, last: bool, width: int, eps: float) -> None:
    """Add the squares of x to the sums; after the last columns, store 1 / sqrt(mean square)."""
    for i in range(x.shape[0]):
        squares = np.float64(_squares(x[i]))
        if seen:
            squares += np.float64(stats[i, 0])
        stats[i, 0] = _rstd(squares, width, eps) if last else squares


@inline(FUSE)
def _normalise(x: Any, rstd: float, gain: Any, y: Any) -> None:
    for j in range(x.size):
        y[j] = x[j] * rstd * gain[j]


@kernel((TILE, TILE, ROW, TILE))
def rmsnorm(x: Any, stats: Any, gain: Any, y: Any) -> None:
    """y = x rstd gain."""
    for i in range(x.shape[0]):
        _normalise(x[i], stats[i, 0], gain, y[i])


@kernel((TILE, ROW, TILE, TILE, REAL))
def rmsnorm_whole(x: Any, gain: Any, stats: Any, y: Any, eps: float) -> None:
    """Compute stats = 1 / sqrt(mean square) of whole rows, and y."""
    for i in range(x.shape[0]):
        stats[i, 0] = _rstd(_squares(x[i]), x.shape[1], eps)
        _normalise(x[i], stats[i, 0], gain, y[i])


@kernel((TILE, ROW, TILE, COUNT, REAL))
def rmsnorm_heads(x: Any, gain: Any, y: Any, heads: int, eps: float) -> None:
    """y = x rstd gain, head by head."""
    count, hs = x.shape[0] * heads, gain.size
    source, target = x.reshape(count, hs), y.reshape(count, hs)
    for i in range(count):
        _normalise(source[i], _rstd(_squares(source[i]), hs, eps), gain, target[i])


@piece(REDUCE)
def _row_sum(dinp: Any, x: Any, gain: Any) -> Any:
    total = ZERO
    for j in range(x.size):
        total += dinp[j] * gain[j] * x[j]
    return total


@kernel((TILE, TILE, TILE, ROW, TILE, FLAG))
def rmsnorm_sums(dinp: Any, x: Any, stats: Any, gain: Any, sums: Any, accumulate: bool) -> None:
    """sums = row sums of dinp gain xhat (+ sums)."""
    for i in range(x.shape[0]):
        total = _row_sum(dinp[i], x[i], gain) * stats[i, 0]
        sums[i, 0] = sums[i, 0] + total if accumulate else total


@piece(FUSE)
def _add_gradient(dinp: Any, x: Any, rstd: float, gain: Any, slope: float, dx: Any) -> None:
    for j in range(x.size):
        dx[j] += rstd * (dinp[j] * gain[j] - x[j] * slope)


@piece(FUSE)
def _set_gradient(dinp: Any, x: Any, rstd: float, gain: Any, slope: float, dx: Any) -> None:
    for j in range(x.size):
        dx[j] = rstd * (dinp[j] * gain[j] - x[j] * slope)


@inline()
def _slope(rstd: float, total: float, width: int) -> Any:
    return rstd * total / np.float32(width)


@piece()
def _gradient(dinp: Any, x: Any, rstd: float, gain: Any, total: float, dx: Any, width: int, accumulate: bool) -> None:
    """Compute one row of dx from its rstd and its sum."""
    if accumulate:
        _add_gradient(dinp, x, rstd, gain, _slope(rstd, total, width), dx)
    else:
        _set_gradient(dinp, x, rstd, gain, _slope(rstd, total, width), dx)


@kernel((TILE, TILE, TILE, ROW, TILE, TILE, COUNT, FLAG))
def rmsnorm_backward(dinp: Any, x: Any, stats: Any, gain: Any, sums: Any, dx: Any, width: int, accumulate: bool) -> None:
    """dx = rstd (dinp gain - xhat sums / width) (+ dx)."""
    for i in range(x.shape[0]):
        _gradient(dinp[i], x[i], stats[i, 0], gain, sums[i, 0], dx[i], width, accumulate)


@piece(FUSE)
def _add_pair(gains: Any, d: Any, x: Any, rstd: float, e: Any, y: Any, rstd_y: float) -> None:
    """Sum two rows in float32, then add them to the float64 sums."""
    for j in range(gains.size):
        gains[j] += d[j] * (x[j] * rstd) + e[j] * (y[j] * rstd_y)


@piece(FUSE)
def _add_one(gains: Any, d: Any, x: Any, rstd: float) -> None:
    for j in range(gains.size):
        gains[j] += d[j] * (x[j] * rstd)


@piece()
def _load(gains: Any, dgain: Any, begun: bool) -> None:
    for j in range(gains.size):
        gains[j] = dgain[j] if begun else 0.0


@piece()
def _store(gains: Any, dgain: Any) -> None:
    for j in range(gains.size):
        dgain[j] = gains[j]


@kernel((TILE, TILE, TILE, ROW, FLAG))
def rmsnorm_gradients(dinp: Any, x: Any, stats: Any, dgain: Any, accumulate: bool) -> None:
    """dgain = column sums of dinp xhat (+ dgain)."""
    rows, columns = x.shape
    buffer = np.empty(min(COLUMNS, columns), np.float64)
    for at in range(0, columns, COLUMNS):
        end = min(at + COLUMNS, columns)
        gains = buffer[: end - at]
        _load(gains, dgain[at:end], accumulate)
        for i in range(0, rows - 1, 2):
            _add_pair(gains, dinp[i, at:end], x[i, at:end], stats[i, 0], dinp[i + 1, at:end], x[i + 1, at:end], stats[i + 1, 0])
        if rows % 2:
            _add_one(gains, dinp[-1, at:end], x[-1, at:end], stats[-1, 0])
        _store(gains, dgain[at:end])


@piece()
def _whole_row(dinp: Any, x: Any, rstd: float, gain: Any, dx: Any, accumulate: bool) -> None:
    _gradient(dinp, x, rstd, gain, _row_sum(dinp, x, gain) * rstd, dx, x.size, accumulate)


@kernel((TILE, TILE, TILE, ROW, TILE, ROW, FLAG, FLAG))
def rmsnorm_whole_backward(
    dinp: Any, x: Any, stats: Any, gain: Any, dx: Any, dgain: Any, accumulate: bool, begun: bool
) -> None:
    """Compute dx and dgain from whole rows (+ themselves)."""
    rows, columns = x.shape
    gains = np.empty(columns, np.float64)
    _load(gains, dgain, begun)
    for i in range(0, rows - 1, 2):
        _whole_row(dinp[i], x[i], stats[i, 0], gain, dx[i], accumulate)
        _whole_row(dinp[i + 1], x[i + 1], stats[i + 1, 0], gain, dx[i + 1], accumulate)
        _add_pair(gains, dinp[i], x[i], stats[i, 0], dinp[i + 1], x[i + 1], stats[i + 1, 0])
    if rows % 2:
        _whole_row(dinp[-1], x[-1], stats[-1, 0], gain, dx[-1], accumulate)
        _add_one(gains, dinp[-1], x[-1], stats[-1, 0])
    _store(gains, dgain)


@piece(REDUCE)
def _head_sums(dy: Any, x: Any, gain: Any) -> Any:
    """Return the sums of x^2 and of dy gain x."""
    squares, total = ZERO, ZERO
    for j in range(x.size):
        squares += x[j] * x[j]
        total += dy[j] * gain[j] * x[j]
    return squares, total


@piece(FUSE)
def _replace_gradient(x: Any, rstd: float, gain: Any, slope: float, grad: Any, gains: Any) -> None:
    for j in range(x.size):
        own = grad[j]
        gains[j] += own * (x[j] * rstd)
        grad[j] = rstd * (own * gain[j] - x[j] * slope)


@inline()
def _head(x: Any, gain: Any, grad: Any, eps: float, gains: Any) -> None:
    """Turn the gradient of one head's y into that of its x, and add grad xhat to gains."""
    squares, total = _head_sums(grad, x, gain)
    rstd = _rstd(squares, x.size, eps)
    _replace_gradient(x, rstd, gain, _slope(rstd, total * rstd, x.size), grad, gains)


@kernel((TILE, ROW, TILE, ROW, COUNT, REAL, FLAG))
def rmsnorm_heads_backward(x: Any, gain: Any, dy: Any, dgain: Any, heads: int, eps: float, begun: bool) -> None:
    """Turn dy into dx, head by head; dgain = sums of dy xhat (+ dgain)."""
    count, hs = x.shape[0] * heads, gain.size
    source, grad = x.reshape(count, hs), dy.reshape(count, hs)
    gains, part = np.empty(hs, np.float64), np.empty(hs, np.float32)
    _load(gains, dgain, begun)
    for i in range(0, count, ROWS):
        for j in range(hs):
            part[j] = ZERO
        for r in range(i, min(i + ROWS, count)):
            _head(source[r], gain, grad[r], eps, part)
        add_one(gains, part)
    _store(gains, dgain)
