"""Causal attention of rows of several examples, and its gradient. The contracts are in asynctile/ops/attention.py.

The pieces are those of attention.py and attention_backward.py. They skip blocks of keys that lie wholly in earlier examples.
"""

from __future__ import annotations

from typing import Any

from asynctile.kernels.cpu.attention import attend
from asynctile.kernels.cpu.attention_backward import attend_backward
from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, TILE, TOKENS, kernel


@kernel((TILE, TILE, TILE, TOKENS, TILE, TILE, COUNT, COUNT, FLAG, FLAG, COUNT), fastmath=FUSE)
def attention_packed(
    q: Any, k: Any, v: Any, positions: Any, out: Any, stats: Any,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Fold keys and values into out and stats."""
    attend(q, k, v, positions, out, stats, seqs, heads, first, diagonal, apart)


@kernel((TILE, TILE, TILE, TOKENS, TILE, TILE, TILE, TILE, TILE, TILE, COUNT, COUNT, FLAG, FLAG, COUNT), fastmath=FUSE)
def attention_packed_backward(
    q: Any, k: Any, v: Any, positions: Any, dout: Any, stats: Any, delta: Any, dq: Any, dk: Any, dv: Any,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Add the contributions of these queries and keys to dq, dk and dv."""
    attend_backward(q, k, v, positions, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal, apart)
