"""Layer normalization, forward and backward, by column tiles. The contracts are in asynctile/ops/layernorm.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, REAL, REDUCE, ROW, TILE, kernel, piece

ZERO = np.float32(0.0)
#: Columns summed at a time, in two float64 buffers of 8 KiB.
COLUMNS = 1024


@piece(REDUCE)
def _moments(row: Any) -> Any:
    """Return (mean, sum of squared deviations) of one row, which stays in the L1 cache for the second pass."""
    total = ZERO
    for j in range(row.size):
        total += row[j]
    mean = total / np.float32(row.size)
    squares, residue = ZERO, ZERO
    for j in range(row.size):
        deviation = row[j] - mean
        squares += deviation * deviation
        residue += deviation
    # The residue is the error that rounding left in the mean.
    residue /= np.float32(row.size)
    return mean + residue, squares - residue * residue * np.float32(row.size)


@kernel((TILE, TILE, COUNT, FLAG, REAL))
def layernorm_stats(x: Any, stats: Any, seen: int, last: bool, eps: float) -> None:
    """Merge the columns of x into (mean, sum of squared deviations); after the last, store (mean, 1 / deviation)."""
    rows, columns = x.shape
    width = seen + columns
    for i in range(rows):
        tile_mean, tile_squares = _moments(x[i])
        mean, squares = np.float64(tile_mean), np.float64(tile_squares)
        if seen:
            before = np.float64(stats[i, 0])
            delta = mean - before
            mean = before + delta * (columns / width)
            squares += np.float64(stats[i, 1]) + delta * delta * (seen * (columns / width))
        stats[i, 0] = mean
        stats[i, 1] = 1.0 / np.sqrt(squares / width + eps) if last else squares


@piece(FUSE)
def _normalise(x: Any, mean: float, rstd: float, gain: Any, bias: Any, y: Any) -> None:
    for j in range(x.size):
        y[j] = (x[j] - mean) * rstd * gain[j] + bias[j]


@kernel((TILE, TILE, ROW, ROW, TILE))
def layernorm(x: Any, stats: Any, gain: Any, bias: Any, y: Any) -> None:
    """y = (x - mean) rstd gain + bias."""
    for i in range(x.shape[0]):
        _normalise(x[i], stats[i, 0], stats[i, 1], gain, bias, y[i])


@kernel((TILE, ROW, ROW, TILE, TILE, REAL))
def layernorm_whole(x: Any, gain: Any, bias: Any, stats: Any, y: Any, eps: float) -> None:
    """Compute stats = (mean, 1 / deviation) of whole rows, and y."""
    for i in range(x.shape[0]):
        mean, squares = _moments(x[i])
        stats[i, 0] = mean
        stats[i, 1] = 1.0 / np.sqrt(np.float64(squares) / x.shape[1] + eps)
        _normalise(x[i], stats[i, 0], stats[i, 1], gain, bias, y[i])


@piece(REDUCE)
def _row_sums(dinp: Any, x: Any, mean: float, gain: Any) -> Any:
    plain, weighted = ZERO, ZERO
    for j in range(x.size):
        d = dinp[j] * gain[j]
        plain += d
        weighted += d * (x[j] - mean)
    return plain, weighted


@kernel((TILE, TILE, TILE, ROW, TILE, FLAG))
def layernorm_sums(dinp: Any, x: Any, stats: Any, gain: Any, sums: Any, accumulate: bool) -> None:
    """sums = row sums of (dinp gain, dinp gain xhat) (+ sums)."""
    for i in range(x.shape[0]):
        plain, weighted = _row_sums(dinp[i], x[i], stats[i, 0], gain)
        weighted *= stats[i, 1]
        sums[i, 0] = sums[i, 0] + plain if accumulate else plain
        sums[i, 1] = sums[i, 1] + weighted if accumulate else weighted


@piece(FUSE)
def _add_gradient(dinp: Any, x: Any, mean: float, rstd: float, gain: Any, offset: float, slope: float, dx: Any) -> None:
    for j in range(x.size):
        dx[j] += rstd * (dinp[j] * gain[j] - offset - (x[j] - mean) * slope)


@piece(FUSE)
def _set_gradient(dinp: Any, x: Any, mean: float, rstd: float, gain: Any, offset: float, slope: float, dx: Any) -> None:
    for j in range(x.size):
        dx[j] = rstd * (dinp[j] * gain[j] - offset - (x[j] - mean) * slope)


@piece()
def _gradient(
    dinp: Any, x: Any, stats: Any, gain: Any, plain: float, weighted: float, dx: Any, width: int, accumulate: bool
) -> None:
    """Compute one row of dx from its stats and sums."""
    mean, rstd = stats[0], stats[1]
    offset = plain / np.float32(width)
    slope = rstd * weighted / np.float32(width)
    if accumulate:
        _add_gradient(dinp, x, mean, rstd, gain, offset, slope, dx)
    else:
        _set_gradient(dinp, x, mean, rstd, gain, offset, slope, dx)


@kernel((TILE, TILE, TILE, ROW, TILE, TILE, COUNT, FLAG))
def layernorm_backward(
    dinp: Any, x: Any, stats: Any, gain: Any, sums: Any, dx: Any, width: int, accumulate: bool
) -> None:
    """dx = rstd (dinp gain - sums[0] / width - xhat sums[1] / width) (+ dx)."""
    for i in range(x.shape[0]):
        _gradient(dinp[i], x[i], stats[i], gain, sums[i, 0], sums[i, 1], dx[i], width, accumulate)


@piece(FUSE)
def _add_pair(gains: Any, biases: Any, d: Any, x: Any, mean: float, rstd: float,
              e: Any, y: Any, mean_y: float, rstd_y: float) -> None:  # fmt: skip
    """Sum two rows in float32, then add them to the float64 sums."""
    for j in range(gains.size):
        gains[j] += d[j] * ((x[j] - mean) * rstd) + e[j] * ((y[j] - mean_y) * rstd_y)
        biases[j] += d[j] + e[j]


@piece(FUSE)
def _add_one(gains: Any, biases: Any, d: Any, x: Any, mean: float, rstd: float) -> None:
    for j in range(gains.size):
        gains[j] += d[j] * ((x[j] - mean) * rstd)
        biases[j] += d[j]


@piece()
def _whole_row(dinp: Any, x: Any, stats: Any, gain: Any, dx: Any, accumulate: bool) -> None:
    plain, weighted = _row_sums(dinp, x, stats[0], gain)
    weighted *= stats[1]
    _gradient(dinp, x, stats, gain, plain, weighted, dx, x.size, accumulate)


@kernel((TILE, TILE, TILE, ROW, TILE, ROW, ROW, FLAG, FLAG))
def layernorm_whole_backward(
    dinp: Any, x: Any, stats: Any, gain: Any, dx: Any, dgain: Any, dbias: Any, accumulate: bool, begun: bool
) -> None:
    """Compute dx, dgain and dbias from whole rows (+ themselves)."""
    rows, columns = x.shape
    gains, biases = np.empty(columns, np.float64), np.empty(columns, np.float64)
    for j in range(columns):
        gains[j] = dgain[j] if begun else 0.0
        biases[j] = dbias[j] if begun else 0.0
    for i in range(0, rows - 1, 2):
        _whole_row(dinp[i], x[i], stats[i], gain, dx[i], accumulate)
        _whole_row(dinp[i + 1], x[i + 1], stats[i + 1], gain, dx[i + 1], accumulate)
        _add_pair(gains, biases, dinp[i], x[i], stats[i, 0], stats[i, 1],
                  dinp[i + 1], x[i + 1], stats[i + 1, 0], stats[i + 1, 1])  # fmt: skip
    if rows % 2:
        _whole_row(dinp[-1], x[-1], stats[-1], gain, dx[-1], accumulate)
        _add_one(gains, biases, dinp[-1], x[-1], stats[-1, 0], stats[-1, 1])
    for j in range(columns):
        dgain[j] = gains[j]
        dbias[j] = biases[j]


@kernel((TILE, TILE, TILE, ROW, ROW, FLAG))
def layernorm_gradients(dinp: Any, x: Any, stats: Any, dgain: Any, dbias: Any, accumulate: bool) -> None:
    """dgain, dbias = column sums of dinp xhat and of dinp (+ themselves)."""
    rows, columns = x.shape
    buffer = np.empty((2, min(COLUMNS, columns)), np.float64)
    for at in range(0, columns, COLUMNS):
        end = min(at + COLUMNS, columns)
        gains, biases = buffer[0, : end - at], buffer[1, : end - at]
        for j in range(gains.size):
            gains[j] = dgain[at + j] if accumulate else 0.0
            biases[j] = dbias[at + j] if accumulate else 0.0
        for i in range(0, rows - 1, 2):
            _add_pair(gains, biases, dinp[i, at:end], x[i, at:end], stats[i, 0], stats[i, 1],
                      dinp[i + 1, at:end], x[i + 1, at:end], stats[i + 1, 0], stats[i + 1, 1])  # fmt: skip
        if rows % 2:
            _add_one(gains, biases, dinp[-1, at:end], x[-1, at:end], stats[-1, 0], stats[-1, 1])
        for j in range(gains.size):
            dgain[at + j] = gains[j]
            dbias[at + j] = biases[j]
