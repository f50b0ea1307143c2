"""AdamW on one tile, and sums of squares; see asynctile/ops/adamw.py for the contract.

The update is compiled without any fast-math flag: each float32 operation is rounded once, on every device alike.
Only the float64 additions of the squared norm may be reordered, by a flag that sits on them alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.jit import FLAG, NUMBER, ROW, TILE, inline, kernel, piece

ONE = np.float32(1.0)


@inline({"reassoc"})
def _add(total: float, value: float) -> float:
    return total + value


@piece()
def _norm(gradients: Any) -> float:
    """One loop for both kernels: the norm of a step must not depend on which of them reported it."""
    norm = 0.0
    for i in range(gradients.size):
        norm = _add(norm, np.float64(gradients[i]) * np.float64(gradients[i]))
    return norm


@kernel((ROW, ROW, ROW, ROW, ROW, FLAG, NUMBER), (TILE, TILE, TILE, TILE, ROW, FLAG, NUMBER))
def adamw(w: Any, g: Any, m: Any, v: Any, hyper: Any, decay: bool, number: Any) -> None:
    """Update w, m, v from g; number = sum of squares of g."""
    weights, gradients, means, squares = w.reshape(-1), g.reshape(-1), m.reshape(-1), v.reshape(-1)
    factor, beta1, rest1, beta2, rest2 = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4]
    step, root, eps = hyper[6], hyper[7], hyper[8]
    keep = hyper[5] if decay else ONE  # a product with 1 changes no bit
    number[0] = _norm(gradients)
    for i in range(weights.size):
        scaled = gradients[i] * factor
        mean = beta1 * means[i] + rest1 * scaled
        square = beta2 * squares[i] + rest2 * (scaled * scaled)
        means[i] = mean
        squares[i] = square
        weights[i] = weights[i] * keep - step * (mean / (np.sqrt(square) / root + eps))


@kernel((ROW, NUMBER), (TILE, NUMBER))
def sum_squares(g: Any, number: Any) -> None:
    """number = sum of squares of g."""
    number[0] = _norm(g.reshape(-1))
