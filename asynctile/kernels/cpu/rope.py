"""Rotary position embedding. The contract is in asynctile/ops/rope.py.

A row's sines and cosines serve all its heads. No product is fused with a sum, so `rope` and `rope_rows` give equal bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import COUNT, FLAG, REAL, TILE, TOKENS, kernel, piece
from asynctile.kernels.cpu.sincos import sincos

ONE, TURN = np.float32(1.0), np.float32(2.0 * np.pi)


@piece()
def _frequencies(frequencies: Any, theta: float, factor: float, low: float, high: float, original: float) -> None:
    """Set the angle, in float32, by which each pair of columns turns from one position to the next."""
    hs = np.float32(2 * frequencies.size)
    for i in range(frequencies.size):
        own = ONE / np.float32(theta ** np.float64(np.float32(2 * i) / hs))
        if factor != 0.0:
            wave = ONE / own * TURN
            if wave > np.float32(original / low):
                own = own / np.float32(factor)
            elif not wave < np.float32(original / high):
                smooth = (ONE / wave * np.float32(original) - np.float32(low)) / np.float32(high - low)
                own = (ONE - smooth) * own / np.float32(factor) + smooth * own
        frequencies[i] = own


@piece()
def _turn(position: int, frequencies: Any, sines: Any, cosines: Any, inverse: bool) -> None:
    """Set the sines and cosines of one position; inverse: those of the opposite angles."""
    at = np.float32(-position if inverse else position)
    for i in range(frequencies.size):
        sines[i], cosines[i] = sincos(at * frequencies[i])


@piece()
def _rotate(row: Any, sines: Any, cosines: Any) -> None:
    half = sines.size
    for at in range(0, row.size, 2 * half):
        first, second = row[at : at + half], row[at + half : at + 2 * half]
        for i in range(half):
            a, b = first[i], second[i]
            first[i] = a * cosines[i] - b * sines[i]
            second[i] = b * cosines[i] + a * sines[i]


@kernel((TILE, COUNT, COUNT, COUNT, FLAG, REAL, REAL, REAL, REAL, REAL))
def rope(
    x: Any, seqs: int, start: int, heads: int, inverse: bool,
    theta: float, factor: float, low: float, high: float, original: float,
) -> None:  # fmt: skip
    """Rotate the rows of whole or partial sequences that begin at `start`."""
    length, half = x.shape[0] // seqs, x.shape[1] // heads // 2
    table = np.empty((3, half), np.float32)
    _frequencies(table[0], theta, factor, low, high, original)
    for t in range(length):
        _turn(start + t, table[0], table[1], table[2], inverse)
        for s in range(seqs):
            _rotate(x[s * length + t], table[1], table[2])


@kernel((TOKENS, TILE, COUNT, FLAG, REAL, REAL, REAL, REAL, REAL))
def rope_rows(
    positions: Any, x: Any, heads: int, inverse: bool,
    theta: float, factor: float, low: float, high: float, original: float,
) -> None:  # fmt: skip
    """Rotate each row by its own position; leave rows of negative positions."""
    half = x.shape[1] // heads // 2
    table = np.empty((3, half), np.float32)
    _frequencies(table[0], theta, factor, low, high, original)
    for r in range(x.shape[0]):
        if positions[r] >= 0:
            _turn(np.int64(positions[r]), table[0], table[1], table[2], inverse)
            _rotate(x[r], table[1], table[2])
