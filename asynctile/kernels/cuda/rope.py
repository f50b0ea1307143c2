"""Launchers of rope.cu. The contracts are in asynctile/ops/rope.py."""

from __future__ import annotations

import numpy as np

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, MANY, divide_up, suffix

#: Neighboring heads that one thread turns, as in rope.cu.
TURNED = 4


def rope(on: Context, x: Array, seqs: int, start: int, heads: int, inverse: bool, *rotation: float) -> None:
    """Turn each row by its position in its sequence; with `inverse`, back."""
    _launch(on, "rope", (x,), heads, (x.shape[0] // seqs, start, inverse), rotation)


def rope_rows(on: Context, positions: Array, x: Array, heads: int, inverse: bool, *rotation: float) -> None:
    """Turn each row by its position in `positions`; with `inverse`, back. Leave rows of negative positions."""
    _launch(on, "rope_rows", (positions, x), heads, (inverse,), rotation)


def _launch(
    on: Context, name: str, operands: tuple[Array, ...], heads: int, places: tuple[int | bool, ...], rotation: tuple[float, ...]
) -> None:
    """Launch a kernel whose last operand is turned. Its grid changes no bit, because no thread needs another's result.

    The numbers of `rotation` stay float64: rounded, they would change frequencies, and angles at far positions with them.
    """
    x = operands[-1]
    rows, half = x.shape[0], x.shape[1] // heads // 2
    tasks = rows * divide_up(heads, TURNED) * (half if half % 4 else half // 4)
    grid = min(MANY, divide_up(tasks, BLOCK))
    sizes, shared = (rows, heads, half, *places), half * np.dtype(np.float32).itemsize
    on.launch(f"{name}_{suffix(x)}", grid, BLOCK, *operands, *sizes, *map(np.float64, rotation), shared=shared)
