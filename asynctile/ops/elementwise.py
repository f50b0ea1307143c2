"""Small verbs: copy, add, fill, scale, and the column sums of a bias gradient."""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def copy(source: Tile, target: Tile) -> Operation:
    """Set target (U) = source (T), any shape, rounded to nearest even if U is bf16. Kernel: copy(source, target)."""
    expect("copy", target, source.shape)
    return Operation("copy", (source, target), "rw")


def add(source: Tile, target: Tile) -> Operation:
    """Add source to target, of the same shape; each element is rounded once. Kernel: add(source, target)."""
    expect("add", target, source.shape)
    return Operation("add", (source, target), "ru")


def fill(target: Tile, value: float) -> Operation:
    """Set target (T) = value everywhere. Kernel: fill(target, value)."""
    return Operation("fill", (target,), "w", (float(value),))


def scale(target: Tile, factor: float) -> Operation:
    """Multiply target (T) by factor, rounded to float32; each element is rounded once. Kernel: scale(target, factor)."""
    return Operation("scale", (target,), "u", (float(factor),))


def column_sums(x: Tile, sums: Tile, *, accumulate: bool) -> Operation:
    """Set sums (C,) = column sums of x (R, C), T, plus sums if `accumulate`. Kernel: column_sums(x, sums, accumulate)."""
    expect("column_sums", sums, x.shape[1:])
    return Operation("column_sums", (x, sums), "ru" if accumulate else "rw", (accumulate,))


def column_sums_copy(x: Tile, sums: Tile, copy: Tile, *, accumulate: bool) -> Operation:
    """Compute `column_sums` of x (R, C), float32, and set copy (R, C), bf16, to x rounded to nearest even.

    Kernel: column_sums_copy(x, sums, copy, accumulate).
    """
    expect("column_sums_copy", sums, x.shape[1:])
    expect("column_sums_copy", copy, x.shape)
    return Operation("column_sums_copy", (x, sums, copy), "ruw" if accumulate else "rww", (accumulate,))
