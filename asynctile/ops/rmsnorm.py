"""Root mean square normalization (RMSNorm, arXiv 1910.07467) of rows that may be cut into several column tiles.

y = x rstd gain over the whole row of `width` columns, with rstd = 1 / sqrt(mean of x^2 + eps). As in layernorm.py, the sum of
squares and the row sum of the backward pass are gathered column tile by column tile, and `rmsnorm_whole` and its backward do
everything in one pass over a tile of whole rows. `rmsnorm_heads` normalizes each head of a row by itself.
"""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def rmsnorm_stats(x: Tile, stats: Tile, *, seen: int, last: bool, width: int, eps: float) -> Operation:
    """Add to stats (R, 1) the sums of squares of the rows of x (R, C). `seen` counts the columns before it.

    seen = 0 starts; `last` turns the sum into rstd = 1 / sqrt(sum / width + eps).
    Kernel: rmsnorm_stats(x, stats, seen, last, width, eps).
    """
    expect("rmsnorm_stats", stats, (x.shape[0], 1))
    return Operation("rmsnorm_stats", (x, stats), "ru" if seen else "rw", (seen, last, width, float(eps)))


def rmsnorm(x: Tile, stats: Tile, gain: Tile, y: Tile) -> Operation:
    """Compute y (R, C), T, from x (R, C), stats (R, 1) = rstd, and gain (C,). Kernel: rmsnorm(x, stats, gain, y)."""
    expect("rmsnorm", y, x.shape)
    expect("rmsnorm", gain, x.shape[1:])
    return Operation("rmsnorm", (x, stats, gain, y), "rrrw")


def rmsnorm_whole(x: Tile, gain: Tile, stats: Tile, y: Tile, *, eps: float) -> Operation:
    """Compute stats (R, 1) = rstd and y (R, C), T, from whole rows x (R, C).

    `rmsnorm` with these stats gives the same bits of y. Kernel: rmsnorm_whole(x, gain, stats, y, eps).
    """
    expect("rmsnorm_whole", y, x.shape)
    expect("rmsnorm_whole", gain, x.shape[1:])
    expect("rmsnorm_whole", stats, (x.shape[0], 1))
    return Operation("rmsnorm_whole", (x, gain, stats, y), "rrww", (float(eps),))


def rmsnorm_sums(dinp: Tile, x: Tile, stats: Tile, gain: Tile, sums: Tile, *, accumulate: bool) -> Operation:
    """Compute sums (R, 1) (+)= row sums of dinp gain xhat, xhat = x rstd. dinp (R, C) is dloss/dy.

    Kernel: rmsnorm_sums(dinp, x, stats, gain, sums, accumulate).
    """
    expect("rmsnorm_sums", dinp, x.shape)
    expect("rmsnorm_sums", sums, (x.shape[0], 1))
    return Operation("rmsnorm_sums", (dinp, x, stats, gain, sums), "rrrru" if accumulate else "rrrrw", (accumulate,))


def rmsnorm_backward(
    dinp: Tile, x: Tile, stats: Tile, gain: Tile, sums: Tile, dx: Tile, *, width: int, accumulate: bool
) -> Operation:
    """Compute dx (R, C) (+)= rstd (dinp gain - xhat sums / width).

    Kernel: rmsnorm_backward(dinp, x, stats, gain, sums, dx, width, accumulate).
    """
    expect("rmsnorm_backward", dx, x.shape)
    access = "rrrrru" if accumulate else "rrrrrw"
    return Operation("rmsnorm_backward", (dinp, x, stats, gain, sums, dx), access, (width, accumulate))


def rmsnorm_gradients(dinp: Tile, x: Tile, stats: Tile, dgain: Tile, *, accumulate: bool) -> Operation:
    """Compute dgain (C,) (+)= column sums of dinp xhat. Kernel: rmsnorm_gradients(dinp, x, stats, dgain, accumulate)."""
    expect("rmsnorm_gradients", dgain, x.shape[1:])
    return Operation("rmsnorm_gradients", (dinp, x, stats, dgain), "rrru" if accumulate else "rrrw", (accumulate,))


def rmsnorm_whole_backward(
    dinp: Tile, x: Tile, stats: Tile, gain: Tile, dx: Tile, dgain: Tile, *, accumulate: bool, begun: bool
) -> Operation:
    """Compute dx (R, C) and dgain (C,) for whole rows, as rmsnorm_sums, _backward and _gradients do.

    accumulate: dx is added to. begun: dgain is added to.
    Kernel: rmsnorm_whole_backward(dinp, x, stats, gain, dx, dgain, accumulate, begun).
    """
    for tile in (dinp, dx):
        expect("rmsnorm_whole_backward", tile, x.shape)
    for tile in (gain, dgain):
        expect("rmsnorm_whole_backward", tile, x.shape[1:])
    access = "rrrr" + ("u" if accumulate else "w") + ("u" if begun else "w")
    return Operation("rmsnorm_whole_backward", (dinp, x, stats, gain, dx, dgain), access, (accumulate, begun))


def rmsnorm_heads(x: Tile, gain: Tile, y: Tile, *, heads: int, eps: float) -> Operation:
    """Normalize each head of x (R, g hs) by itself into y (R, g hs), both T, with one gain (hs,) for all heads.

    Kernel: rmsnorm_heads(x, gain, y, heads, eps).
    """
    expect("rmsnorm_heads", y, x.shape)
    expect("rmsnorm_heads", x, (x.shape[0], heads * gain.shape[0]))
    return Operation("rmsnorm_heads", (x, gain, y), "rrw", (heads, float(eps)))


def rmsnorm_heads_backward(x: Tile, gain: Tile, dy: Tile, dgain: Tile, *, heads: int, eps: float, begun: bool) -> Operation:
    """Turn dy (R, g hs), T, into dx in place; dgain (hs,) (+)= the sums of dy xhat over rows and heads.

    rstd is computed again from x (R, g hs), T. begun: dgain is added to. The sums use dy as it was.
    Kernel: rmsnorm_heads_backward(x, gain, dy, dgain, heads, eps, begun).
    """
    expect("rmsnorm_heads_backward", dy, x.shape)
    expect("rmsnorm_heads_backward", dgain, gain.shape)
    expect("rmsnorm_heads_backward", x, (x.shape[0], heads * gain.shape[0]))
    return Operation("rmsnorm_heads_backward", (x, gain, dy, dgain), "rruu" if begun else "rruw", (heads, float(eps), begun))
