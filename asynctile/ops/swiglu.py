"""SwiGLU (arXiv 2002.05202), the gated activation of LLaMA: silu(gate) up, with silu(x) = x / (1 + exp(-x))."""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def swiglu(gate: Tile, up: Tile, y: Tile) -> Operation:
    """Set y = silu(gate) up, (R, C), all T. Kernel: swiglu(gate, up, y)."""
    for tile in (up, y):
        expect("swiglu", tile, gate.shape)
    return Operation("swiglu", (gate, up, y), "rrw")


def swiglu_and_backward(gate: Tile, up: Tile, y: Tile, grad: Tile, dgate: Tile) -> Operation:
    """Compute `swiglu` and, from grad = dloss/dy, dgate = grad up silu'(gate), and dup = grad silu(gate) in place of grad.

    All are (R, C), T. Kernel: swiglu_and_backward(gate, up, y, grad, dgate).
    """
    for tile in (up, y, grad, dgate):
        expect("swiglu_and_backward", tile, gate.shape)
    return Operation("swiglu_and_backward", (gate, up, y, grad, dgate), "rrwuw")
