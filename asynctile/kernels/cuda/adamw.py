"""Launchers of adamw.cu. The contracts are in asynctile/ops/adamw.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, MANY, blocks_of_vectors

#: The most blocks. More would leave more partial sums and read no faster.
BLOCKS = 2 * MANY


def adamw(on: Context, w: Array, g: Array, m: Array, v: Array, hyper: Array, decay: bool, padding: int, number: Array) -> None:
    """Update w, m, v from g; number = sum of squares of g."""
    blocks = min(blocks_of_vectors(w), BLOCKS)
    on.launch("adamw_f32", blocks, BLOCK, w, g, m, v, hyper, decay, w.size - padding, w.size, on.scratch, on.arrived, number)


def adamw_bf16(
    on: Context, w: Array, g: Array, m: Array, v: Array, hyper: Array, copy: Array, decay: bool, padding: int, number: Array
) -> None:
    """Update w, m, v from g; copy = w in bf16; number = sum of squares of g."""
    blocks = min(blocks_of_vectors(w), BLOCKS)
    count, sums = w.size - padding, (on.scratch, on.arrived, number)
    on.launch("adamw_bf16", blocks, BLOCK, w, g, m, v, hyper, copy, decay, count, w.size, *sums)


def sum_squares(on: Context, g: Array, padding: int, number: Array) -> None:
    """number = sum of squares of g."""
    blocks = min(blocks_of_vectors(g), BLOCKS)
    on.launch("sum_squares", blocks, BLOCK, g, g.size - padding, on.scratch, on.arrived, number)
