"""Attention of single tokens over one page of keys and values; see asynctile/ops/attention_page.py for the contract.

Rows of the page's sequence meet it some at a time, head by head. Their scores are one product; what they gather of the values
is one for rows that see as many keys, since a weight of zero would not hide a NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.attention import LOWEST, ONE, ZERO, scale_of
from asynctile.kernels.cpu.exp import exp, key, unkey
from asynctile.kernels.cpu.gemm_rows import add_times, add_times_transposed, on
from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, REDUCE, TILE, TOKENS, inline, kernel, piece

#: Rows that meet a page together.
GROUP = 6


@piece()
def _begin(out: Any, stats: Any) -> None:
    """No key has been met."""
    out[:, :] = ZERO
    heads = stats.shape[0] // 2
    stats[:heads], stats[heads:] = LOWEST, ZERO


@piece()
def _end(out: Any, stats: Any) -> None:
    """Divide by the sums; what has met no key stays 0."""
    heads = stats.shape[0] // 2
    hs = out.shape[1] // heads
    for r in range(out.shape[0]):
        for h in range(heads):
            total = stats[heads + h, r]
            share = ONE / total if total != ZERO else ZERO
            line = out[r, h * hs : (h + 1) * hs]
            for c in range(hs):
                line[c] *= share


@inline()
def _seen(rows: Any, r: int, owner: int, start: int, places: int) -> int:
    """How many keys of the page row r sees."""
    return min(places, rows[2 * r + 1] - start + 1) if rows[2 * r] == owner else 0


@piece()
def _store(k: Any, v: Any, page: Any, rows: Any, owner: int, start: int) -> None:
    """Put the keys and values of new tokens at their places."""
    places = page.shape[0] // 2
    for r in range(k.shape[0]):
        place = rows[2 * r + 1] - start
        if rows[2 * r] == owner and 0 <= place < places:
            page[place], page[places + place] = k[r], v[r]


@piece(REDUCE)
def _weigh(scores: Any, top: float) -> Any:
    """The sum of the weights that scores become."""
    total = ZERO
    for j in range(scores.size):
        weight = exp(scores[j] - top)
        scores[j] = weight
        total += weight
    return total


@piece()
def _largest(scores: Any, top: float) -> Any:
    best = key(top)
    for j in range(scores.size):
        best = max(best, key(scores[j]))
    return unkey(best)


@piece(FUSE)
def _pack(line: Any, scale: float, packed: Any) -> None:
    for c in range(line.size):
        packed[c] = line[c] * scale


@piece(FUSE)
def _join(line: Any, decay: float, gathered: Any) -> None:
    for c in range(line.size):
        line[c] = line[c] * decay + gathered[c]


@piece()
def _score(q: Any, page: Any, at: int, group: Any, seen: Any, packed: Any, scores: Any) -> None:
    """scores (rows, keys) of a head, whose columns begin at `at`; more than a row sees may be in it."""
    places, columns, hs = page.shape[0] // 2, page.shape[1], packed.shape[1]
    most = seen.max()
    for i in range(group.size):
        _pack(q[group[i], at : at + hs], scale_of(hs), packed[i])
        scores[i, :most] = ZERO
    x, y, z = packed.ctypes.data, on(page.ctypes.data, at), scores.ctypes.data
    add_times_transposed(group.size, most, hs, x, hs, y, columns, z, places)


@piece()
def _gather(page: Any, at: int, seen: Any, weights: Any, gathered: Any) -> None:
    """gathered (rows, hs) = weights times the values that each row sees."""
    places, columns, hs = page.shape[0] // 2, page.shape[1], gathered.shape[1]
    values = on(page.ctypes.data, places * columns + at)
    gathered[: seen.size] = ZERO
    i = 0
    while i < seen.size:
        end = i + 1
        while end < seen.size and seen[end] == seen[i]:
            end += 1
        x, z = on(weights.ctypes.data, i * places), on(gathered.ctypes.data, i * hs)
        add_times(end - i, hs, seen[i], x, places, values, columns, z, hs)
        i = end


@piece()
def _fold(q: Any, page: Any, h: int, group: Any, seen: Any, out: Any, stats: Any, packed: Any, scores: Any) -> None:
    """One head of rows `group`, which see `seen` keys."""
    heads, hs = stats.shape[0] // 2, packed.shape[1]
    at = h * hs
    _score(q, page, at, group, seen, packed, scores)
    decays = np.empty(GROUP, np.float32)
    for i in range(group.size):
        r, row = group[i], scores[i, : seen[i]]
        before = stats[h, r]
        top = _largest(row, before)
        decays[i] = exp(before - top)
        stats[h, r], stats[heads + h, r] = top, stats[heads + h, r] * decays[i] + _weigh(row, top)
    _gather(page, at, seen, scores, packed)
    for i in range(group.size):
        _join(out[group[i], at : at + hs], decays[i], packed[i])


@kernel((TILE, TILE, TILE, TILE, TOKENS, TOKENS, TILE, TILE, COUNT, COUNT, FLAG, FLAG))
def attention_page(
    q: Any, k: Any, v: Any, page: Any, rows: Any, pages: Any, out: Any, stats: Any,
    number: int, heads: int, first: bool, last: bool,
) -> None:  # fmt: skip
    """Store the new tokens of a page, then fold it into out and stats."""
    if first:
        _begin(out, stats)
    owner, start = pages[2 * number], pages[2 * number + 1]
    if owner >= 0:
        places, hs = page.shape[0] // 2, q.shape[1] // heads
        _store(k, v, page, rows, owner, start)
        packed, scores = np.empty((GROUP, hs), np.float32), np.empty((GROUP, places), np.float32)
        group, seen = np.empty(GROUP, np.int64), np.empty(GROUP, np.int64)
        count = 0
        for r in range(q.shape[0]):
            keys = _seen(rows, r, owner, start, places)
            if keys > 0:
                group[count], seen[count] = r, keys
                count += 1
            if count == GROUP or (count > 0 and r == q.shape[0] - 1):
                for h in range(heads):
                    _fold(q, page, h, group[:count], seen[:count], out, stats, packed, scores)
                count = 0
    if last:
        _end(out, stats)
