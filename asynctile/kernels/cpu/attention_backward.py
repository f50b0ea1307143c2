"""The gradient of causal attention of one query tile with one key tile. The contract is in asynctile/ops/attention.py.

Blocks are stored as in attention.py, keys by queries. Weights are recomputed from the log-sum-exp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.attention import (
    ONE,
    QUERIES,
    ZERO,
    attention_delta,
    mask,
    mask_before,
    pack_transposed,
    scale_of,
    score,
    seen_by,
)
from asynctile.kernels.cpu.blas import sgemm
from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, TILE, TOKENS, inline, kernel, piece

#: Equal to QUERIES, so that a block of dk and dv on the diagonal is whole when queries first meet it.
KEYS = QUERIES


@piece(FUSE)
def _weigh(p: Any, ds: Any, keys: int, scale: float, lse: Any, delta: Any) -> None:
    """Turn p from scores into weights, and ds from dout v^T into the gradient of q k^T."""
    for c in range(keys):
        for r in range(QUERIES):
            weight = exp(p[c, r] - lse[r])
            p[c, r] = weight
            ds[c, r] = weight * ((ds[c, r] - delta[r]) * scale)


@inline()
def _times(n: int, hs: int, m: int, a: Any, b: Any, b_at: int, beta: float, c: Any, c_at: int) -> None:
    """Compute c (n, hs) = a (n, m) b (m, hs) + beta c, where c and b are blocks of tiles."""
    sgemm(n, hs, m, ONE, a, 0, QUERIES, False, b, b_at, b.shape[1], False, beta, c, c_at, c.shape[1])


@piece()
def _silence(ds: Any, positions: Any, row: int, rows: int, first: bool) -> None:
    """Set to zero the gradient of the score of each query that sees a single key: two roundings would differ there."""
    if positions.size:
        for r in range(rows):
            if positions[row + r] == 0:
                ds[r, r] = ZERO
    elif first:
        ds[0, 0] = ZERO


@piece(FUSE)
def attend_backward(
    q: Any, k: Any, v: Any, positions: Any, dout: Any, stats: Any, delta: Any, dq: Any, dk: Any, dv: Any,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Add the contributions to dq, dk and dv. positions: of the queries; empty if each sequence is one example."""
    step, hs = k.shape[1], q.shape[1] // heads
    ratio = q.shape[1] // step
    rows, columns = q.shape[0] // seqs, k.shape[0] // seqs
    scale = scale_of(hs)
    qs_t, douts_t = np.empty((hs, QUERIES), np.float32), np.empty((hs, QUERIES), np.float32)
    p, ds = np.empty((KEYS, QUERIES), np.float32), np.empty((KEYS, QUERIES), np.float32)
    state = np.empty((2, QUERIES), np.float32)
    for h in range(heads):
        for s in range(seqs):
            for i in range(0, rows, QUERIES):
                m, row = min(QUERIES, rows - i), s * rows + i
                reach = min(columns, i + m) if diagonal else columns
                begin, whole = seen_by(positions, row, m, apart + i)
                begin -= begin % KEYS
                if begin >= reach:
                    if first:
                        dq[row : row + m, h * hs : (h + 1) * hs] = ZERO
                    continue
                here = row * q.shape[1] + h * hs
                pack_transposed(q, row, m, h * hs, scale, qs_t)
                pack_transposed(dout, row, m, h * hs, ONE, douts_t)
                for r in range(QUERIES):
                    state[0, r] = stats[h, row + r] if r < m else ZERO
                    state[1, r] = delta[h, row + r] if r < m else ZERO
                for j in range(begin, reach, KEYS):
                    n = min(KEYS, reach - j)
                    there = (s * columns + j) * step + h // ratio * hs
                    score(n, hs, k, there, step, qs_t, p)
                    score(n, hs, v, there, step, douts_t, ds)
                    _weigh(p, ds, n, scale, state[0], state[1])
                    if j < whole:
                        mask_before(p, n, positions, row, m, apart + i - j, ZERO)
                        mask_before(ds, n, positions, row, m, apart + i - j, ZERO)
                    if diagonal and j == i:
                        mask(p, n, 0, ZERO)
                        mask(ds, n, 0, ZERO)
                        _silence(ds, positions, row, m, first and i == 0)
                    beta = ZERO if diagonal and j == i and h % ratio == 0 else ONE
                    _times(n, hs, m, p, dout, here, beta, dv, there)
                    _times(n, hs, m, ds, q, here, beta, dk, there)
                    beta = ZERO if first and j == begin else ONE
                    sgemm(m, hs, n, ONE, ds, 0, QUERIES, True, k, there, step, False, beta, dq, here, q.shape[1])


@kernel((TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE, COUNT, COUNT, FLAG, FLAG), fastmath=FUSE)
def attention_backward(
    q: Any, k: Any, v: Any, dout: Any, stats: Any, delta: Any, dq: Any, dk: Any, dv: Any,
    seqs: int, heads: int, first: bool, diagonal: bool,
) -> None:  # fmt: skip
    """Add the contributions of these queries and keys, of one example a sequence, to dq, dk and dv."""
    none = np.empty(0, np.int32)
    attend_backward(q, k, v, none, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal, 0)


@kernel((TILE, TILE, TILE, TOKENS, TILE, TILE, TILE, TILE, TILE, TILE, COUNT, COUNT, FLAG, FLAG, COUNT), fastmath=FUSE)
def attention_packed_backward(
    q: Any, k: Any, v: Any, positions: Any, dout: Any, stats: Any, delta: Any, dq: Any, dk: Any, dv: Any,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Add the contributions of these queries and keys, of several examples a sequence, to dq, dk and dv."""
    attend_backward(q, k, v, positions, dout, stats, delta, dq, dk, dv, seqs, heads, first, diagonal, apart)


@kernel((TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE, COUNT, COUNT))
def attention_backward_whole(
    q: Any, k: Any, v: Any, out: Any, dout: Any, stats: Any, delta: Any, dq: Any, dk: Any, dv: Any, seqs: int, heads: int
) -> None:
    """Compute dq, dk and dv of whole sequences. delta is workspace."""
    attention_delta(out, dout, delta, heads)
    yes = heads > 0  # a literal True would make Numba compile the kernel again for that value
    attention_backward(q, k, v, dout, stats, delta, dq, dk, dv, seqs, heads, yes, yes)
