"""Token and position embeddings and their gradients, summed in token order so that the bits never change.

A row tile holds `seqs` sequences of t = R / seqs tokens each, at positions start .. start + t - 1.
"""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def embed_positions(wpe: Tile, x: Tile, *, seqs: int, start: int, row: int, first: bool) -> Operation:
    """Set the rows of x (R, C) whose position lies in this wpe tile (P, C), T, to the tile's rows; leave other rows unchanged.

    The tile holds positions row .. row + P - 1. Together the tiles write every row of x; `first` means that none has been
    written yet. Kernel: embed_positions(wpe, x, seqs, start, row).
    """
    return Operation("embed_positions", (wpe, x), "rw" if first else "ru", (seqs, start, row))


def embed_tokens(tokens: Tile, wte: Tile, x: Tile, *, row: int) -> Operation:
    """Add wte[token - row] to x (R, C) for tokens (R,) int32 that lie in this wte tile (V, C), T.

    The tile holds rows row .. row + V - 1 of the vocabulary. Kernel: embed_tokens(tokens, wte, x, row).
    """
    expect("embed_tokens", tokens, x.shape[:1])
    return Operation("embed_tokens", (tokens, wte, x), "rru", (row,))


def embed_positions_backward(dx: Tile, dwpe: Tile, *, seqs: int, start: int, row: int) -> Operation:
    """Add the rows of dx (R, C) to dwpe (P, C) by position, sequence after sequence.

    Kernel: embed_positions_backward(dx, dwpe, seqs, start, row).
    """
    return Operation("embed_positions_backward", (dx, dwpe), "ru", (seqs, start, row))


def embed_tokens_backward(tokens: Tile, dx: Tile, dwte: Tile, *, row: int) -> Operation:
    """Add the rows of dx (R, C) to dwte (V, C) by token, in token order.

    Kernel: embed_tokens_backward(tokens, dx, dwte, row).
    """
    expect("embed_tokens_backward", tokens, dx.shape[:1])
    return Operation("embed_tokens_backward", (tokens, dx, dwte), "rru", (row,))
