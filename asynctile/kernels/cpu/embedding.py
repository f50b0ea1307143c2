"""Token and position embeddings and their gradients. The contracts are in asynctile/ops/embedding.py.

Rows of a tile whose token or position belongs to another tile of the table are left unchanged. A table may be bf16.
"""

from __future__ import annotations

from typing import Any

from asynctile.kernels.cpu.bf16 import float_of
from asynctile.kernels.cpu.jit import COUNT, HALF, TILE, TOKENS, kernel


@kernel((TILE, TILE, COUNT, COUNT, COUNT), (HALF, TILE, COUNT, COUNT, COUNT))
def embed_positions(wpe: Any, x: Any, seqs: int, start: int, row: int) -> None:
    """x[i] = wpe[position of i - row]."""
    length, columns = x.shape[0] // seqs, x.shape[1]
    for i in range(x.shape[0]):
        place = start + i % length - row
        if 0 <= place < wpe.shape[0]:
            for j in range(columns):
                x[i, j] = float_of(wpe[place, j])


@kernel((TOKENS, TILE, TILE, COUNT), (TOKENS, HALF, TILE, COUNT))
def embed_tokens(tokens: Any, wte: Any, x: Any, row: int) -> None:
    """x[i] += wte[tokens[i] - row]."""
    columns = x.shape[1]
    for i in range(x.shape[0]):
        place = tokens[i] - row
        if 0 <= place < wte.shape[0]:
            for j in range(columns):
                x[i, j] += float_of(wte[place, j])


@kernel((TILE, TILE, COUNT, COUNT, COUNT))
def embed_positions_backward(dx: Any, dwpe: Any, seqs: int, start: int, row: int) -> None:
    """dwpe[position of i - row] += dx[i], for i in order."""
    length, columns = dx.shape[0] // seqs, dx.shape[1]
    for i in range(dx.shape[0]):
        place = start + i % length - row
        if 0 <= place < dwpe.shape[0]:
            for j in range(columns):
                dwpe[place, j] += dx[i, j]


@kernel((TOKENS, TILE, TILE, COUNT))
def embed_tokens_backward(tokens: Any, dx: Any, dwte: Any, row: int) -> None:
    """dwte[tokens[i] - row] += dx[i], for i in order."""
    columns = dx.shape[1]
    for i in range(dx.shape[0]):
        place = tokens[i] - row
        if 0 <= place < dwte.shape[0]:
            for j in range(columns):
                dwte[place, j] += dx[i, j]
