"""Launchers of elementwise.cu. The contracts are in asynctile/ops/elementwise.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, WARP, blocks_of_vectors, chunks_of_rows, divide_up, lanes, spans, suffix


def copy(on: Context, source: Array, target: Array) -> None:
    """target = source, in target's dtype."""
    narrow = min(source, target, key=lambda array: array.dtype.itemsize)
    on.launch(f"copy_{suffix(source)}_{suffix(target)}", blocks_of_vectors(narrow), BLOCK, source, target, source.size)


def add(on: Context, source: Array, target: Array) -> None:
    """target += source."""
    on.launch("add_f32", blocks_of_vectors(target), BLOCK, source, target, target.size)


def fill(on: Context, target: Array, value: float) -> None:
    """target = value everywhere."""
    on.launch(f"fill_{suffix(target)}", blocks_of_vectors(target), BLOCK, target, value, target.size)


def scale(on: Context, target: Array, factor: float) -> None:
    """target *= factor."""
    on.launch(f"scale_{suffix(target)}", blocks_of_vectors(target), BLOCK, target, factor, target.size)


def column_sums(on: Context, x: Array, sums: Array, accumulate: bool) -> None:
    """sums = column sums of x (+ sums)."""
    rows, columns = x.shape
    width = spans(columns, lanes(x))
    chunks = chunks_of_rows(on, rows, width, columns)
    on.launch(f"column_sums_{suffix(x)}", width * chunks, BLOCK, x, on.scratch, rows, columns, chunks)
    on.launch("column_sums_last", divide_up(columns, WARP), BLOCK, on.scratch, sums, chunks, columns, accumulate)


def column_sums_copy(on: Context, x: Array, sums: Array, copy: Array, accumulate: bool) -> None:
    """sums = column sums of x (+ sums), copy = x in bf16."""
    rows, columns = x.shape
    width = spans(columns, lanes(x))
    chunks = chunks_of_rows(on, rows, width, columns)
    on.launch("column_sums_copy", width * chunks, BLOCK, x, copy, on.scratch, rows, columns, chunks)
    on.launch("column_sums_last", divide_up(columns, WARP), BLOCK, on.scratch, sums, chunks, columns, accumulate)
