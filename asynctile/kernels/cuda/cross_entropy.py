"""Launchers of cross_entropy.cu. The contracts are in asynctile/ops/cross_entropy.py."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context
from asynctile.kernels.cuda.grid import BLOCK, lanes, patches, suffix

#: Threads that read one row of logits: 2048 logits at a time.
ROW = 128
#: Threads that sum the losses of all rows.
ALL_ROWS = 1024


def cross_entropy(
    on: Context, logits: Array, targets: Array, stats: Array, column: int, padding: int, first: bool, last: bool, number: Array
) -> None:  # fmt: skip
    """Fold one tile into (maximum, sum, target's logit); after the last, (log-sum-exp, ...) and the sum of losses."""
    rows, pitch = logits.shape
    kernel, columns = f"cross_entropy_{suffix(logits)}", pitch - padding
    on.launch(kernel, rows, ROW, logits, targets, stats, columns, pitch, column, first, last)
    if last:
        on.launch("cross_entropy_loss", 1, ALL_ROWS, targets, stats, rows, number)


def cross_entropy_backward(
    on: Context, targets: Array, stats: Array, scale: Array, logits: Array, column: int, padding: int
) -> None:
    """logits = (softmax - one-hot target) scale."""
    rows, pitch = logits.shape
    kernel, grid = f"cross_entropy_backward_{suffix(logits)}", patches(rows, pitch, lanes(logits))
    on.launch(kernel, grid, BLOCK, targets, stats, scale, logits, rows, pitch - padding, pitch, column)
