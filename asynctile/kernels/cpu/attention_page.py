"""Attention of single tokens over one page of keys and values; see asynctile/ops/attention_page.py for the contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.attention import LOWEST, ONE, ZERO, scale_of
from asynctile.kernels.cpu.exp import exp
from asynctile.kernels.cpu.jit import COUNT, FLAG, TILE, TOKENS, kernel, piece


@piece()
def _begin(out: Any, stats: Any) -> None:
    """No key has been met."""
    heads = stats.shape[0] // 2
    for r in range(out.shape[0]):
        for c in range(out.shape[1]):
            out[r, c] = ZERO
        for h in range(heads):
            stats[h, r], stats[heads + h, r] = LOWEST, ZERO


@piece()
def _end(out: Any, stats: Any) -> None:
    """Divide by the sums; what has met no key stays 0."""
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
    """Put the keys and values of new tokens at their places."""
    places = page.shape[0] // 2
    for r in range(k.shape[0]):
        place = rows[2 * r + 1] - start
        if rows[2 * r] == owner and 0 <= place < places:
            for c in range(k.shape[1]):
                page[place, c], page[places + place, c] = k[r, c], v[r, c]


@piece()
def _fold(q: Any, keys: Any, values: Any, h: int, out: Any, stats: Any, r: int, scores: Any) -> None:
    """One row and head over the keys that it meets."""
    heads = stats.shape[0] // 2
    hs = q.size // heads
    at = h * hs
    top = stats[h, r]
    for j in range(keys.shape[0]):
        total = ZERO
        for c in range(at, at + hs):
            total += q[c] * keys[j, c]
        scores[j] = total * scale_of(hs)
        top = scores[j] if scores[j] > top else top
    decay = exp(stats[h, r] - top)
    total = stats[heads + h, r] * decay
    for c in range(at, at + hs):
        out[c] *= decay
    for j in range(keys.shape[0]):
        weight = exp(scores[j] - top)
        total += weight
        for c in range(at, at + hs):
            out[c] += weight * values[j, c]
    stats[h, r], stats[heads + h, r] = top, total


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
        places = page.shape[0] // 2
        _store(k, v, page, rows, owner, start)
        scores = np.empty(places, np.float32)
        for r in range(q.shape[0]):
            met = min(places, rows[2 * r + 1] - start + 1)
            if rows[2 * r] == owner and met > 0:
                for h in range(heads):
                    _fold(q[r], page[:met], page[places : places + met], h, out[r], stats, r, scores)
    if last:
        _end(out, stats)
