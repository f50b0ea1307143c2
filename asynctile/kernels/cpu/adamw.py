"""AdamW on one tile, and sums of squares. The contract is in asynctile/ops/adamw.py.

The update is compiled without any fast-math flag, so each float32 operation is rounded once, on every device alike. Only the
float64 additions of the squared norm may be reordered, by a flag on that addition alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.bf16 import bf16_of
from asynctile.kernels.cpu.jit import COUNT, FLAG, HALF, NUMBER, ROW, TILE, inline, kernel, piece

ZERO, ONE = np.float32(0.0), np.float32(1.0)


@inline({"reassoc"})
def _add(total: float, value: float) -> float:
    return total + value


@piece()
def _norm(gradients: Any) -> float:
    """Return the sum of squares.

    Both kernels use this loop, so a step's norm does not depend on the kernel that reported it.
    """
    norm = 0.0
    for i in range(gradients.size):
        norm = _add(norm, np.float64(gradients[i]) * np.float64(gradients[i]))
    return norm


@inline()
def _updated(weight: Any, gradient: Any, mean: Any, square: Any, keep: Any, settings: Any) -> Any:
    """Return (weight, mean, square) of one element after its update. settings: `hyper` as a tuple."""
    factor, beta1, rest1, beta2, rest2, _, step, root, eps = settings
    scaled = gradient * factor
    mean = beta1 * mean + rest1 * scaled
    square = beta2 * square + rest2 * (scaled * scaled)
    return weight * keep - step * (mean / (np.sqrt(square) / root + eps)), mean, square


@inline()
def _settings(hyper: Any) -> Any:
    """Return `hyper` as a tuple in registers, which stores into a tile cannot change."""
    return hyper[0], hyper[1], hyper[2], hyper[3], hyper[4], hyper[5], hyper[6], hyper[7], hyper[8]


@kernel((ROW, ROW, ROW, ROW, ROW, FLAG, COUNT, NUMBER), (TILE, TILE, TILE, TILE, ROW, FLAG, COUNT, NUMBER))
def adamw(w: Any, g: Any, m: Any, v: Any, hyper: Any, decay: bool, padding: int, number: Any) -> None:
    """Update w, m, v from g; number = sum of squares of g."""
    weights, gradients, means, squares = w.reshape(-1), g.reshape(-1), m.reshape(-1), v.reshape(-1)
    settings = _settings(hyper)
    keep = settings[5] if decay else ONE  # a product with 1 changes no bit
    count = weights.size - padding
    number[0] = _norm(gradients[:count])
    for i in range(count):
        weights[i], means[i], squares[i] = _updated(weights[i], gradients[i], means[i], squares[i], keep, settings)
    for i in range(count, weights.size):
        weights[i] = means[i] = squares[i] = ZERO


@kernel((TILE, TILE, TILE, TILE, ROW, HALF, FLAG, COUNT, NUMBER))
def adamw_bf16(w: Any, g: Any, m: Any, v: Any, hyper: Any, copy: Any, decay: bool, padding: int, number: Any) -> None:
    """Update w, m, v from g; copy = w in bf16; number = sum of squares of g."""
    weights, gradients, means, squares = w.reshape(-1), g.reshape(-1), m.reshape(-1), v.reshape(-1)
    copies = copy.reshape(-1)
    settings = _settings(hyper)
    keep = settings[5] if decay else ONE
    count = weights.size - padding
    number[0] = _norm(gradients[:count])
    for i in range(count):
        weight, mean, square = _updated(weights[i], gradients[i], means[i], squares[i], keep, settings)
        weights[i], means[i], squares[i], copies[i] = weight, mean, square, bf16_of(weight)
    for i in range(count, weights.size):
        weights[i] = means[i] = squares[i] = ZERO
        copies[i] = 0


@kernel((ROW, COUNT, NUMBER), (TILE, COUNT, NUMBER))
def sum_squares(g: Any, padding: int, number: Any) -> None:
    """number = sum of squares of g."""
    number[0] = _norm(g.reshape(-1)[: g.size - padding])
