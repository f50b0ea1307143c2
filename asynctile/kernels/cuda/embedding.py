"""Launchers of embedding.cu. The contracts are in asynctile/ops/embedding.py."""

from __future__ import annotations

import numpy as np

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, divide_up, lanes, patches, spans, suffix

INT32 = np.dtype(np.int32)
#: Table rows whose tokens are listed together, and table rows that one block adds to, as in embedding.cu.
GROUP, ROWS = 64, 8
#: Threads that scan all tokens for a group.
LISTING = 1024
#: Tokens that are listed at a time. An entry packs a token's index and a place in its group into 31 bits.
TOKENS = 1 << 19


def embed_positions(on: Context, wpe: Array, x: Array, seqs: int, start: int, row: int) -> None:
    """x[i] = wpe[position of i - row]."""
    rows, columns = x.shape
    kernel, grid = f"embed_positions_{suffix(wpe)}", patches(rows, columns, lanes(wpe))
    on.launch(kernel, grid, BLOCK, wpe, x, rows, columns, wpe.shape[0], rows // seqs, start - row)


def embed_tokens(on: Context, tokens: Array, wte: Array, x: Array, row: int) -> None:
    """x[i] += wte[tokens[i] - row]."""
    rows, columns = x.shape
    kernel, grid = f"embed_tokens_{suffix(wte)}", patches(rows, columns, lanes(wte))
    on.launch(kernel, grid, BLOCK, tokens, wte, x, rows, columns, wte.shape[0], row)


def embed_positions_backward(on: Context, dx: Array, dwpe: Array, seqs: int, start: int, row: int) -> None:
    """dwpe[position of i - row] += dx[i], sequence after sequence."""
    places, columns = dwpe.shape
    grid, length = patches(places, columns, lanes(dwpe)), dx.shape[0] // seqs
    on.launch("embed_positions_backward", grid, BLOCK, dx, dwpe, places, columns, seqs, length, start - row)


def embed_tokens_backward(on: Context, tokens: Array, dx: Array, dwte: Array, row: int) -> None:
    """dwte[tokens[i] - row] += dx[i], in token order."""
    places, columns = dwte.shape
    groups = divide_up(places, GROUP)
    starts = Array(on.scratch.ptr, (groups,), INT32)
    ends = Array(starts.ptr + starts.nbytes, (groups,), INT32)
    lists = Array(ends.ptr + ends.nbytes, (min(tokens.size, TOKENS),), INT32)
    if lists.ptr + lists.nbytes > on.scratch.ptr + on.scratch.nbytes:
        raise ValueError(f"the gradient of {places} table rows does not fit in {on.scratch.nbytes} bytes; take smaller tiles")
    for first in range(0, tokens.size, TOKENS):
        count = min(TOKENS, tokens.size - first)
        some = Array(tokens.ptr + first * INT32.itemsize, (count,), INT32)
        rows = Array(dx.ptr + first * columns * dx.dtype.itemsize, (count, columns), dx.dtype)
        on.launch("embed_tokens_lists", groups, LISTING, some, count, places, row, starts, ends, lists)
        grid = divide_up(places, ROWS) * spans(columns, lanes(dwte))
        on.launch("embed_tokens_backward", grid, BLOCK, starts, ends, lists, rows, dwte, places, columns)
