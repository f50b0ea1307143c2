"""Token and position embeddings and their gradients, in token order so that the bits never change.

A row tile holds `seqs` sequences of t = R / seqs tokens that stand at positions start .. start + t - 1.
"""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def embed_positions(wpe: Tile, x: Tile, *, seqs: int, start: int, row: int, first: bool) -> Operation:
    """x (R, C) = position rows, for those rows of x whose position lies in this wpe tile (P, C), T; others untouched.

    The tile holds positions row .. row + P - 1. The tiles together write every row of x; `first` says that none has
    been written yet. Kernel: embed_positions(wpe, x, seqs, start, row).
    """
    return Operation("embed_positions", (wpe, x), "rw" if first else "ru", (seqs, start, row))


def embed_tokens(tokens: Tile, wte: Tile, x: Tile, *, row: int) -> Operation:
    """x (R, C) += wte[token - row] for tokens (R,) int32 in this wte tile (V, C), T, = rows row .. row + V - 1.

    Kernel: embed_tokens(tokens, wte, x, row).
    """
    expect("embed_tokens", tokens, x.shape[:1])
    return Operation("embed_tokens", (tokens, wte, x), "rru", (row,))


def embed_positions_backward(dx: Tile, dwpe: Tile, *, seqs: int, start: int, row: int) -> Operation:
    """dwpe (P, C) += rows of dx (R, C) by position, sequence after sequence. Kernel:
    embed_positions_backward(dx, dwpe, seqs, start, row)."""
    return Operation("embed_positions_backward", (dx, dwpe), "ru", (seqs, start, row))


def embed_tokens_backward(tokens: Tile, dx: Tile, dwte: Tile, *, row: int) -> Operation:
    """dwte (V, C) += rows of dx (R, C) by token, in token order.

    Kernel: embed_tokens_backward(tokens, dx, dwte, row).
    """
    expect("embed_tokens_backward", tokens, dx.shape[:1])
    return Operation("embed_tokens_backward", (tokens, dx, dwte), "rru", (row,))
