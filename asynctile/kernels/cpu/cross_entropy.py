"""Cross-entropy over vocabulary tiles, and its gradient in place. The contract is in asynctile/ops/cross_entropy.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.cpu.exp import exp, key, unkey
from asynctile.kernels.cpu.jit import COUNT, FLAG, FUSE, NUMBER, REDUCE, ROW, TILE, TOKENS, kernel, piece
from asynctile.ops.cross_entropy import IGNORED

ZERO, ONE = np.float32(0.0), np.float32(1.0)
LOWEST = np.float32(-np.inf)


@piece()
def _row_maximum(row: Any) -> Any:
    """Return the largest element. It may miss a NaN, which then shows in the sum that follows."""
    largest = key(row[0])
    for j in range(1, row.size):
        largest = max(largest, key(row[j]))
    return unkey(largest)


@piece(REDUCE)
def _sum_exp(row: Any, offset: float) -> Any:
    total = ZERO
    for j in range(row.size):
        total += exp(row[j] - offset)
    return total


@kernel((TILE, TOKENS, TILE, COUNT, COUNT, FLAG, FLAG, NUMBER))
def cross_entropy(
    logits: Any, targets: Any, stats: Any, column: int, padding: int, first: bool, last: bool, number: Any
) -> None:
    """Fold one tile into (maximum, sum, target's logit); after the last, (log-sum-exp, ...) and the sum of losses."""
    rows, columns = logits.shape[0], logits.shape[1] - padding
    losses = 0.0
    for i in range(rows):
        row = logits[i][:columns]
        before = LOWEST if first else stats[i, 0]
        largest = max(before, _row_maximum(row))
        total = _sum_exp(row, largest)
        if not first:
            total += stats[i, 1] * exp(before - largest)
        place = np.int64(targets[i]) - column
        chosen = ZERO if first else stats[i, 2]
        if 0 <= place < columns:
            chosen = row[place]
        if last:
            lse = np.float64(largest) + np.log(np.float64(total))
            if targets[i] != IGNORED:
                losses += lse - chosen
            stats[i, 0] = lse
        else:
            stats[i, 0] = largest
        stats[i, 1] = total
        stats[i, 2] = chosen
    if last:
        number[0] = losses


@kernel((TOKENS, TILE, ROW, TILE, COUNT, COUNT), fastmath=FUSE)
def cross_entropy_backward(targets: Any, stats: Any, scale: Any, logits: Any, column: int, padding: int) -> None:
    """logits = (softmax - one-hot target) scale."""
    rows, columns = logits.shape[0], logits.shape[1] - padding
    factor = scale[0]
    for i in range(rows):
        logits[i, columns:] = ZERO
        row = logits[i][:columns]
        if targets[i] == IGNORED:
            for j in range(columns):
                row[j] = ZERO
            continue
        lse = stats[i, 0]
        place = np.int64(targets[i]) - column
        inside = 0 <= place < columns
        chosen = row[place] if inside else ZERO
        for j in range(columns):
            row[j] = exp(row[j] - lse) * factor
        if inside:
            row[place] = (exp(chosen - lse) - ONE) * factor
