"""SwiGLU and its gradient. The contract is in asynctile/ops/swiglu.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import FUSE, TILE, kernel, piece

ONE = np.float32(1.0)


@kernel((TILE, TILE, TILE), fastmath=FUSE)
def swiglu(gate: Any, up: Any, y: Any) -> None:
    """y = silu(gate) up."""
    source, factor, target = gate.reshape(-1), up.reshape(-1), y.reshape(-1)
    for i in range(source.size):
        value = source[i]
        target[i] = value / (ONE + exp(-value)) * factor[i]


@piece(FUSE)
def _pass_and_bend(source: Any, factor: Any, target: Any, grad: Any, dsource: Any) -> None:
    for i in range(source.size):
        value, slope, scale = source[i], grad[i], factor[i]
        whole = ONE + exp(-value)
        silu, share = value / whole, ONE / whole
        target[i] = silu * scale
        dsource[i] = slope * scale * (share + silu * (ONE - share))
        grad[i] = slope * silu


@kernel((TILE, TILE, TILE, TILE, TILE))
def swiglu_and_backward(gate: Any, up: Any, y: Any, grad: Any, dgate: Any) -> None:
    """y = silu(gate) up; dgate = grad up silu'(gate); grad *= silu(gate)."""
    _pass_and_bend(gate.reshape(-1), up.reshape(-1), y.reshape(-1), grad.reshape(-1), dgate.reshape(-1))
