"""Launchers of gelu.cu. The contracts are in asynctile/ops/gelu.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, WARP, blocks_of_vectors, chunks_of_rows, divide_up, lanes, spans, suffix


def gelu(on: Context, x: Array, y: Array) -> None:
    """y = gelu(x)."""
    on.launch(f"gelu_{suffix(x)}", blocks_of_vectors(x), BLOCK, x, y, x.size)


def gelu_and_backward(on: Context, x: Array, y: Array, grad: Array, sums: Array, accumulate: bool) -> None:
    """y = gelu(x); grad *= gelu'(x); sums = column sums of grad (+ sums)."""
    rows, columns = x.shape
    width = spans(columns, lanes(x))
    chunks = chunks_of_rows(on, rows, width, columns)
    kernel = f"gelu_and_backward_{suffix(x)}"
    on.launch(kernel, width * chunks, BLOCK, x, y, grad, on.scratch, rows, columns, chunks)
    on.launch("column_sums_last", divide_up(columns, WARP), BLOCK, on.scratch, sums, chunks, columns, accumulate)
