"""Causal attention of one query tile with one key tile. The contract is in asynctile/ops/attention.py.

The gradient is in attention_backward.py. The kernels work block by block, so that scores stay in the L2 cache, and they skip
blocks above the diagonal and of keys that lie wholly in earlier examples. A block of scores is stored transposed, keys by
queries. Maxima, sums and exponentials then run over queries side by side in the lanes of a vector, and no loop reduces across
lanes. OpenBLAS computes the products. Its kernels for small matrices are fastest on dense operands of these layouts (260
against 160 GFLOP/s for q k^T on strided rows, Zen 5), so queries are transposed once for all their keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.blas import sgemm
from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, REDUCE, TILE, TOKENS, inline, kernel, piece

#: Queries of a block, always computed whole (missing ones are zeros), and keys of a block. The scores take 32 KiB.
QUERIES, KEYS = 64, 128
ZERO, ONE = np.float32(0.0), np.float32(1.0)
LOWEST = np.float32(-np.inf)
#: The running maximum of a query that has seen no key. Finite, so that its weights of hidden keys are 0 and not NaN.
UNSEEN = np.finfo(np.float32).min


@inline()
def scale_of(hs: int) -> Any:
    """Return 1 / sqrt(hs), rounded once."""
    return np.float32(1.0 / np.sqrt(np.float64(hs)))


@piece()
def pack_transposed(x: Any, row: int, rows: int, column: int, factor: float, packed: Any) -> None:
    """Write packed (hs, QUERIES) = transpose of a block of x, times factor. Missing rows become zeros."""
    for r in range(rows):
        line = x[row + r, column : column + packed.shape[0]]
        for c in range(packed.shape[0]):
            packed[c, r] = line[c] * factor
    for c in range(packed.shape[0]):
        for r in range(rows, QUERIES):
            packed[c, r] = ZERO


@piece()
def mask(scores: Any, keys: int, ahead: int, value: float) -> None:
    """Set to `value` the scores that query r does not see: those of keys beyond `ahead` + r."""
    for c in range(max(0, ahead + 1), keys):
        for r in range(min(QUERIES, c - ahead)):
            scores[c, r] = value


@piece()
def mask_before(scores: Any, keys: int, positions: Any, row: int, rows: int, ahead: int, value: float) -> None:
    """Set to `value` the scores of keys of earlier examples: for query r, those before `ahead` + r - positions[row + r]."""
    for r in range(rows):
        for c in range(min(keys, ahead + r - positions[row + r])):
            scores[c, r] = value


@inline()
def seen_by(positions: Any, row: int, rows: int, ahead: int) -> Any:
    """Return the first key that any of these queries sees, and the first that all of them see, beside those after a query.

    `ahead`: how far the first query is behind the first key. Starts of examples ascend, so two queries tell.
    """
    if positions.size == 0:
        return 0, 0
    last = row + rows - 1
    return max(0, ahead - positions[row]), ahead + rows - 1 - positions[last]


@inline()
def score(keys: int, hs: int, k: Any, at: int, step: int, packed: Any, scores: Any) -> None:
    """Compute scores (keys, QUERIES) = rows of k (keys, hs) times packed (hs, QUERIES)."""
    sgemm(keys, QUERIES, hs, ONE, k, at, step, False, packed, 0, QUERIES, False, ZERO, scores, 0, QUERIES)


@inline()
def _larger(a: float, b: float) -> float:
    return a if a > b else b


@piece(FUSE)
def _softmax(scores: Any, keys: int, top: Any, total: Any, decay: Any) -> None:
    """Turn scores into weights under the new running maximum `top`; decay = the factor by which the old weights shrink."""
    for r in range(QUERIES):
        decay[r] = top[r]
    whole = keys - keys % 4
    for c in range(0, whole, 4):
        for r in range(QUERIES):
            low = _larger(scores[c, r], scores[c + 1, r])
            high = _larger(scores[c + 2, r], scores[c + 3, r])
            top[r] = _larger(_larger(low, high), top[r])
    for c in range(whole, keys):
        for r in range(QUERIES):
            top[r] = _larger(scores[c, r], top[r])
    for r in range(QUERIES):
        decay[r] = exp(decay[r] - top[r])
        total[r] *= decay[r]
    for c in range(keys):
        for r in range(QUERIES):
            weight = exp(scores[c, r] - top[r])
            scores[c, r] = weight
            total[r] += weight


@piece()
def _load(out: Any, stats: Any, row: int, rows: int, head: int, first: bool, block: Any, top: Any, total: Any) -> None:
    """Load the running state of a block of queries, or start it."""
    heads, hs = stats.shape[0] // 2, block.shape[1]
    for r in range(QUERIES):
        old = not first and r < rows
        top[r] = stats[head, row + r] if old else UNSEEN
        total[r] = stats[heads + head, row + r] if old else ZERO
        if old:
            line = out[row + r, head * hs : (head + 1) * hs]
            for c in range(hs):
                block[r, c] = line[c]
        else:
            for c in range(hs):
                block[r, c] = ZERO


@piece()
def _store(out: Any, stats: Any, row: int, rows: int, head: int, last: bool, block: Any, top: Any, total: Any) -> None:
    """Store the state; at the last key tile, divide by the sums and store the log-sum-exp."""
    heads, hs = stats.shape[0] // 2, block.shape[1]
    for r in range(rows):
        share = ONE / total[r] if last else ONE
        line = out[row + r, head * hs : (head + 1) * hs]
        for c in range(hs):
            line[c] = block[r, c] * share
        stats[head, row + r] = np.float64(top[r]) + np.log(np.float64(total[r])) if last else np.float64(top[r])
        stats[heads + head, row + r] = total[r]


@piece(FUSE)
def attend(
    q: Any, k: Any, v: Any, positions: Any, out: Any, stats: Any,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Fold keys and values into out and stats. positions: of the queries; empty if each sequence is one example."""
    step, hs = k.shape[1], q.shape[1] // heads
    ratio = q.shape[1] // step
    rows, columns = q.shape[0] // seqs, k.shape[0] // seqs
    packed, block = np.empty((hs, QUERIES), np.float32), np.empty((QUERIES, hs), np.float32)
    scores = np.empty((KEYS, QUERIES), np.float32)
    state = np.empty((3, QUERIES), np.float32)
    top, total, decay = state[0], state[1], state[2]
    for h in range(heads):
        for s in range(seqs):
            for i in range(0, rows, QUERIES):
                m, row = min(QUERIES, rows - i), s * rows + i
                reach = min(columns, i + m) if diagonal else columns
                begin, whole = seen_by(positions, row, m, apart + i)
                if begin >= reach and not first:
                    continue  # these keys are of earlier examples alone, so the state stays
                pack_transposed(q, row, m, h * hs, scale_of(hs), packed)
                _load(out, stats, row, m, h, first, block, top, total)
                for j in range(begin - begin % KEYS, reach, KEYS):
                    n = min(KEYS, reach - j)
                    there = (s * columns + j) * step + h // ratio * hs
                    score(n, hs, k, there, step, packed, scores)
                    if diagonal:
                        mask(scores, n, i - j, LOWEST)
                    if j < whole:
                        mask_before(scores, n, positions, row, m, apart + i - j, LOWEST)
                    _softmax(scores, n, top, total, decay)
                    for r in range(QUERIES):
                        for c in range(hs):
                            block[r, c] *= decay[r]
                    sgemm(QUERIES, hs, n, ONE, scores, 0, QUERIES, True, v, there, step, False, ONE, block, 0, hs)
                _store(out, stats, row, m, h, diagonal, block, top, total)


@kernel((TILE, TILE, TILE, TILE, TILE, COUNT, COUNT, FLAG, FLAG), fastmath=FUSE)
def attention(q: Any, k: Any, v: Any, out: Any, stats: Any, seqs: int, heads: int, first: bool, diagonal: bool) -> None:
    """Fold keys and values of one example a sequence into out and stats."""
    attend(q, k, v, np.empty(0, np.int32), out, stats, seqs, heads, first, diagonal, 0)


@kernel((TILE, TILE, TILE, TOKENS, TILE, TILE, COUNT, COUNT, FLAG, FLAG, COUNT), fastmath=FUSE)
def attention_packed(
    q: Any, k: Any, v: Any, positions: Any, out: Any, stats: Any,
    seqs: int, heads: int, first: bool, diagonal: bool, apart: int,
) -> None:  # fmt: skip
    """Fold keys and values of several examples a sequence into out and stats."""
    attend(q, k, v, positions, out, stats, seqs, heads, first, diagonal, apart)


@piece(REDUCE)
def _dot(a: Any, b: Any) -> Any:
    total = ZERO
    for c in range(a.size):
        total += a[c] * b[c]
    return total


@kernel((TILE, TILE, TILE, COUNT))
def attention_delta(out: Any, dout: Any, delta: Any, heads: int) -> None:
    """Compute delta = row sums of out dout, head by head."""
    hs = out.shape[1] // heads
    for r in range(out.shape[0]):
        for h in range(heads):
            delta[h, r] = _dot(out[r, h * hs : (h + 1) * hs], dout[r, h * hs : (h + 1) * hs])
