"""Launchers of swiglu.cu. The contracts are in asynctile/ops/swiglu.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, blocks_of_vectors, suffix


def swiglu(on: Context, gate: Array, up: Array, y: Array) -> None:
    """y = silu(gate) up."""
    on.launch(f"swiglu_{suffix(gate)}", blocks_of_vectors(gate), BLOCK, gate, up, y, gate.size)


def swiglu_and_backward(on: Context, gate: Array, up: Array, y: Array, grad: Array, dgate: Array) -> None:
    """y = silu(gate) up; dgate = grad up silu'(gate); grad *= silu(gate)."""
    kernel = f"swiglu_and_backward_{suffix(gate)}"
    on.launch(kernel, blocks_of_vectors(gate), BLOCK, gate, up, y, grad, dgate, gate.size)
