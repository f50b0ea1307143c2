"""GELU in the tanh form of GPT-2: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

from __future__ import annotations

from asynctile.handle import Handle
from asynctile.operation import Operation, expect


def gelu(x: Handle, y: Handle) -> Operation:
    """y = gelu(x), (R, C), both T. Kernel: gelu(x, y)."""
    expect("gelu", y, x.shape)
    return Operation("gelu", (x, y), "rw")


def gelu_backward(x: Handle, grad: Handle) -> Operation:
    """grad (R, C) *= gelu'(x), both T, in place. Kernel: gelu_backward(x, grad)."""
    expect("gelu_backward", grad, x.shape)
    return Operation("gelu_backward", (x, grad), "ru")


def gelu_backward_sums(x: Handle, grad: Handle, sums: Handle, *, accumulate: bool) -> Operation:
    """`gelu_backward`, and sums (C,) = column sums of the new grad before it is rounded to T, plus sums if `accumulate`.

    Kernel: gelu_backward_sums(x, grad, sums, accumulate).
    """
    expect("gelu_backward_sums", grad, x.shape)
    expect("gelu_backward_sums", sums, x.shape[1:])
    return Operation("gelu_backward_sums", (x, grad, sums), "ruu" if accumulate else "ruw", (accumulate,))
