"""Launches of gelu.cu; see asynctile/ops/gelu.py for the contracts."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, blocks_of_vectors, suffix


def gelu(on: Context, x: Array, y: Array) -> None:
    """y = gelu(x)."""
    on.launch(f"gelu_{suffix(x)}", blocks_of_vectors(x), BLOCK, x, y, x.size)


def gelu_backward(on: Context, x: Array, grad: Array) -> None:
    """grad *= gelu'(x)."""
    on.launch(f"gelu_backward_{suffix(x)}", blocks_of_vectors(x), BLOCK, x, grad, x.size)
