"""GELU (tanh form) and its derivative; see asynctile/ops/gelu.py for the contract.

0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u)): no tanh is computed, and no digits are lost where it is near -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import FUSE, TILE, kernel

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


@kernel((TILE, TILE), fastmath=FUSE)
def gelu_backward(x: Any, grad: Any) -> None:
    """grad *= gelu'(x)."""
    source, target = x.reshape(-1), grad.reshape(-1)
    for i in range(source.size):
        value = source[i]
        square = value * value
        share = ONE / (ONE + exp(value * (SLOPE + CUBIC * square)))
        bend = value * (SLOPE + CUBIC_3 * square)
        target[i] *= share - share * (ONE - share) * bend
