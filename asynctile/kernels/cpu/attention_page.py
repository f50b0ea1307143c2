"""Attention of single tokens over one page of keys and values. The contract is in asynctile/ops/attention_page.py.

The rows of the page's sequence are computed in groups, one key head after another. A line is a row's part in one of the query
heads that read this key head. The scores of a group's lines are one product, so that keys are read once. Values are multiplied
in one product for rows that see the same number of keys, because a weight of zero would not hide a NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.attention import LOWEST, ONE, ZERO, scale_of
from asynctile.kernels.cpu.exp import exp, key, unkey
from asynctile.kernels.cpu.gemm_rows import add_times, add_times_transposed, on, start_of
from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, REDUCE, TILE, TOKENS, kernel, piece

#: Lines of a group; more if there are more query heads than this for a key head.
GROUP = 6


@piece()
def _begin(out: Any, stats: Any) -> None:
    """Start the state: no key has been seen."""
    heads = stats.shape[0] // 2
    for r in range(out.shape[0]):
        for c in range(out.shape[1]):
            out[r, c] = ZERO
        for h in range(heads):
            stats[h, r], stats[heads + h, r] = LOWEST, ZERO


@piece()
def _end(out: Any, stats: Any) -> None:
    """Divide by the sums. A row that has seen no key stays 0."""
    heads = stats.shape[0] // 2
    hs = out.shape[1] // heads
    for r in range(out.shape[0]):
        for h in range(heads):
            total = stats[heads + h, r]
            share = ONE / total if total != ZERO else ZERO
            for c in range(h * hs, (h + 1) * hs):
                out[r, c] *= share


@piece()
def _store(k: Any, v: Any, page: Any, rows: Any, owner: int, start: int) -> None:
    """Store the keys and values of new tokens in the page."""
    places = page.shape[0] // 2
    for r in range(k.shape[0]):
        place = rows[2 * r + 1] - start
        if rows[2 * r] == owner and 0 <= place < places:
            for c in range(k.shape[1]):
                page[place, c], page[places + place, c] = k[r, c], v[r, c]


@piece(REDUCE)
def _weigh(scores: Any, i: int, seen: int, top: float) -> Any:
    """Turn the scores of a row into weights, and return their sum."""
    total = ZERO
    for j in range(seen):
        weight = exp(scores[i, j] - top)
        scores[i, j] = weight
        total += weight
    return total


@piece()
def _largest(scores: Any, i: int, seen: int, top: float) -> Any:
    best = key(top)
    for j in range(seen):
        best = max(best, key(scores[i, j]))
    return unkey(best)


@piece()
def _pack(q: Any, h: int, ratio: int, group: Any, count: int, packed: Any) -> None:
    """Write packed (count ratio, hs) = scaled columns of the heads h .. h + ratio - 1."""
    hs = packed.shape[1]
    scale = scale_of(hs)
    for i in range(count):
        for g in range(ratio):
            for c in range(hs):
                packed[i * ratio + g, c] = q[group[i], (h + g) * hs + c] * scale


@piece()
def _clear(x: Any) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = ZERO


@piece()
def _soften(scores: Any, group: Any, seen: Any, count: int, h: int, ratio: int, stats: Any, decays: Any) -> None:
    """Turn scores into weights under new running maxima; decays = the factors by which the old weights shrink."""
    heads = stats.shape[0] // 2
    for line in range(count * ratio):
        i, head = line // ratio, h + line % ratio
        r = group[i]
        before = stats[head, r]
        top = _largest(scores, line, seen[i], before)
        decay = exp(before - top)
        stats[head, r], stats[heads + head, r] = top, stats[heads + head, r] * decay + _weigh(scores, line, seen[i], top)
        decays[line] = decay


@piece()
def _alike(seen: Any, i: int, count: int) -> int:
    """Return how many rows from row i on see the same number of keys."""
    end = i + 1
    while end < count and seen[end] == seen[i]:
        end += 1
    return end - i


@piece(FUSE)
def _join(out: Any, group: Any, count: int, h: int, ratio: int, decays: Any, gathered: Any) -> None:
    hs = gathered.shape[1]
    for line in range(count * ratio):
        r, at = group[line // ratio], (h + line % ratio) * hs
        for c in range(hs):
            out[r, at + c] = out[r, at + c] * decays[line] + gathered[line, c]


@piece()
def _next_group(rows: Any, r: int, owner: int, start: int, places: int, group: Any, seen: Any) -> Any:
    """Fill a group with the next rows from r on that see a key.

    Returns (size of the group, most keys that one row sees, the row after the group).
    """
    count = most = 0
    while r < rows.size // 2 and count < group.size:
        keys = min(places, rows[2 * r + 1] - start + 1)
        if rows[2 * r] == owner and keys > 0:
            group[count], seen[count] = r, keys
            count, most = count + 1, max(most, keys)
        r += 1
    return count, most, r


@kernel((TILE, TILE, TILE, TILE, TOKENS, TOKENS, TILE, TILE, COUNT, COUNT, FLAG, FLAG))
def attention_page(
    q: Any, k: Any, v: Any, page: Any, rows: Any, pages: Any, out: Any, stats: Any,
    number: int, heads: int, first: bool, last: bool,
) -> None:  # fmt: skip
    """Store the new tokens of a page, then fold the page into out and stats."""
    if first:
        _begin(out, stats)
    owner, start = pages[2 * number], pages[2 * number + 1]
    if owner >= 0:
        _store(k, v, page, rows, owner, start)
        places, columns = page.shape[0] // 2, page.shape[1]
        hs, ratio = q.shape[1] // heads, q.shape[1] // columns
        size = max(1, GROUP // ratio)
        packed, scores = np.empty((size * ratio, hs), np.float32), np.empty((size * ratio, places), np.float32)
        gathered, decays = np.empty((size * ratio, hs), np.float32), np.empty(size * ratio, np.float32)
        group, seen = np.empty(size, np.int64), np.empty(size, np.int64)
        count, most, r = _next_group(rows, 0, owner, start, places, group, seen)
        while count:
            for h in range(0, heads, ratio):
                at = h // ratio * hs
                keys, values = on(start_of(page), at), on(start_of(page), places * columns + at)
                x, weights, sums = start_of(packed), start_of(scores), start_of(gathered)
                _pack(q, h, ratio, group, count, packed)
                _clear(scores)
                # Scores of keys that a row does not see are computed too, and never read.
                add_times_transposed(count * ratio, most, hs, x, hs, keys, columns, weights, places)
                _soften(scores, group, seen, count, h, ratio, stats, decays)
                _clear(gathered)
                i = 0
                while i < count:
                    alike, line = _alike(seen, i, count), i * ratio
                    add_times(
                        alike * ratio, hs, seen[i], on(weights, line * places), places, values, columns, on(sums, line * hs), hs
                    )
                    i += alike
                _join(out, group, count, h, ratio, decays, gathered)
            count, most, r = _next_group(rows, r, owner, start, places, group, seen)
    if last:
        _end(out, stats)
