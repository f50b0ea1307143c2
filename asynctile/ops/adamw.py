"""AdamW on one tile, and the squared norm of a gradient.

Every float32 operation is rounded once, in the order written here, on every device (no contraction, no fast-math):
    g' = g factor;  m = beta1 m + omb1 g';  v = beta2 v + omb2 (g' g')
    w = w keep (decayed tiles only);  w = w - step (m / (sqrt(v) / root + eps))
This is decoupled weight decay as in arXiv 1711.05101, arranged as in PyTorch.

A tile may end in `padding` elements that do not belong to its tensor. Whatever their values, they do not count in the norm, and
an update sets them to 0.
"""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile

#: Columns of the `hyper` tile: (factor, beta1, 1 - beta1, beta2, 1 - beta2, keep = 1 - lr decay,
#: step = lr / (1 - beta1^t), root = sqrt(1 - beta2^t), eps), each computed in float64 and rounded once.
HYPER = 9


def adamw(
    w: Tile, g: Tile, m: Tile, v: Tile, hyper: Tile, *, decay: bool, number: int, padding: int = 0
) -> Operation:
    """Update w, m and v (any shape) from g; report the float64 sum of squares of g, before `factor`, as `number`.

    Kernel: adamw(w, g, m, v, hyper, decay, padding, number).
    """
    for tile in (g, m, v):
        expect("adamw", tile, w.shape)
    expect("adamw", hyper, (HYPER,))
    return Operation("adamw", (w, g, m, v, hyper), "uruur", (decay, padding), number=number)


def adamw_bf16(
    w: Tile, g: Tile, m: Tile, v: Tile, hyper: Tile, copy: Tile, *, decay: bool, number: int, padding: int = 0
) -> Operation:
    """Update a matrix (R, C) as `adamw` does, with the same bits, and set copy (R, C), bf16, to w rounded to nearest even.

    Kernel: adamw_bf16(w, g, m, v, hyper, copy, decay, padding, number).
    """
    for tile in (g, m, v, copy):
        expect("adamw_bf16", tile, w.shape)
    expect("adamw_bf16", hyper, (HYPER,))
    return Operation("adamw_bf16", (w, g, m, v, hyper, copy), "uruurw", (decay, padding), number=number)


def sum_squares(g: Tile, *, number: int, padding: int = 0) -> Operation:
    """Report the float64 sum of squares of g as `number`, with the same bits as this device's `adamw`.

    Kernel: sum_squares(g, padding, number).
    """
    return Operation("sum_squares", (g,), "r", (padding,), number=number)
