"""GELU in the tanh form of GPT-2: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def gelu(x: Tile, y: Tile) -> Operation:
    """Set y = gelu(x), (R, C), both T. Kernel: gelu(x, y)."""
    expect("gelu", y, x.shape)
    return Operation("gelu", (x, y), "rw")


def gelu_and_backward(x: Tile, y: Tile, grad: Tile, sums: Tile, *, accumulate: bool) -> Operation:
    """Compute `gelu`, multiply grad (R, C), T, by gelu'(x), and set sums (C,) to its column sums, plus sums if `accumulate`.

    The sums use grad before it is rounded to T. Kernel: gelu_and_backward(x, y, grad, sums, accumulate).
    """
    for tile in (y, grad):
        expect("gelu_and_backward", tile, x.shape)
    expect("gelu_and_backward", sums, x.shape[1:])
    return Operation("gelu_and_backward", (x, y, grad, sums), "rwuu" if accumulate else "rwuw", (accumulate,))
