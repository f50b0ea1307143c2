"""Layer normalization of the residual stream, whose rows are cut into column tiles.

Outputs are recomputed from x and the statistics wherever they are needed. That costs a pass over the tile; keeping them would
cost a tile of memory. asynctile/ops/layernorm.py defines the arithmetic.
"""

from __future__ import annotations

from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import (
    layernorm,
    layernorm_backward,
    layernorm_gradients,
    layernorm_stats,
    layernorm_sums,
    layernorm_whole,
    layernorm_whole_backward,
)


def forward(recording: Recording, rows: RowTiles, x: Grid, layer: str) -> tuple[Grid, Grid]:
    """Return y (R, C) by column tile, and the statistics (R, 2) = (mean, rstd) by row tile."""
    if len(recording.columns) > 1:
        stats = _gather(recording, rows, x, layer)
        return again(recording, rows, x, stats, layer), stats
    gain, bias = recording.parameters.pair(layer)
    y, stats = recording.grid(layer, recording.tiling.model), recording.per_row(f"{layer}.stats", 2)
    eps = recording.config.norm_epsilon
    for row in rows:
        recording.program.add(layernorm_whole(
            x[row.index, 0], gain.compute[0, 0], bias.compute[0, 0], stats.new(row), y.new(row), eps=eps))
    return y, stats


def again(recording: Recording, rows: RowTiles, x: Grid, stats: Grid, layer: str) -> Grid:
    """Recompute y (R, C) by column tile, with the same bits as `forward`."""
    gain, bias = recording.parameters.pair(layer)
    y = recording.grid(layer, recording.tiling.model)
    for k in recording.columns:
        for row in rows:
            r = row.index
            operation = layernorm(x[r, k], stats[r, 0], gain.compute[k, 0], bias.compute[k, 0], y.new(row, k))
            recording.program.add(operation)
    return y


def backward(recording: Recording, rows: RowTiles, x: Grid, stats: Grid, dinp: Grid, layer: str, dx: Grid) -> None:
    """Compute dx (R, C) (+)= the gradient of x from dinp (R, C), the gradient of the output; also those of gain and bias."""
    through = _backward_in_pieces if len(recording.columns) > 1 else _backward_whole
    through(recording, rows, x, stats, dinp, layer, dx)


def _backward_whole(
    recording: Recording, rows: RowTiles, x: Grid, stats: Grid, dinp: Grid, layer: str, dx: Grid
) -> None:
    gain, bias = recording.parameters.pair(layer)
    gradients = recording.gradients
    for row in rows:
        r = row.index
        (tile, accumulate), (dgain, begun), (dbias, _) = dx.open(row), gradients.open(gain, 0), gradients.open(bias, 0)
        recording.program.add(layernorm_whole_backward(
            dinp[r, 0], x[r, 0], stats[r, 0], gain.compute[0, 0], tile, dgain, dbias, accumulate=accumulate, begun=begun))
    gradients.settle(gain, rows[-1], 0)
    gradients.settle(bias, rows[-1], 0)


def _backward_in_pieces(
    recording: Recording, rows: RowTiles, x: Grid, stats: Grid, dinp: Grid, layer: str, dx: Grid
) -> None:
    """Make two passes over the columns, there and back. The first gathers the sums over whole rows."""
    gain, bias = recording.parameters.pair(layer)
    sums = recording.per_row(f"{layer}.sums", 2)
    gradients = recording.gradients
    add = recording.program.add
    width = recording.tiling.model.offsets[-1]
    for k in recording.columns:
        g = gain.compute[k, 0]
        for row in rows:
            r = row.index
            tile, begun = sums.open(row)
            add(layernorm_sums(dinp[r, k], x[r, k], stats[r, 0], g, tile, accumulate=begun))
            dgain, begun = gradients.open(gain, k)
            dbias, _ = gradients.open(bias, k)
            add(layernorm_gradients(dinp[r, k], x[r, k], stats[r, 0], dgain, dbias, accumulate=begun))
    for k in reversed(recording.columns):
        g = gain.compute[k, 0]
        for row in rows:
            r = row.index
            tile, begun = dx.open(row, k)
            operation = layernorm_backward(
                dinp[r, k], x[r, k], stats[r, 0], g, sums[r, 0], tile, width=width, accumulate=begun)
            add(operation)
        # Settle only now: the operation above still reads the gain.
        gradients.settle(gain, rows[-1], k)
        gradients.settle(bias, rows[-1], k)


def _gather(recording: Recording, rows: RowTiles, x: Grid, layer: str) -> Grid:
    """Return the statistics, gathered column tile by column tile."""
    stats = recording.per_row(f"{layer}.stats", 2)
    split, eps = recording.tiling.model, recording.config.norm_epsilon
    last = len(split) - 1
    for row in rows:
        for k, (start, _) in enumerate(split):
            operation = layernorm_stats(x[row.index, k], stats.new(row), seen=start, last=k == last, eps=eps)
            recording.program.add(operation)
    return stats
