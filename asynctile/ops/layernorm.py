"""Layer normalization of rows that may be cut into several column tiles.

y = (x - mean) rstd gain + bias over the whole row of `width` columns. The statistics, and the two row sums of the backward
pass, are gathered column tile by column tile, so no operation needs the whole row. If a tile has whole rows, `layernorm_whole`
and its backward do everything in one pass over it.
"""

from __future__ import annotations

from asynctile.program.operation import Operation, expect
from asynctile.storage.tile import Tile


def layernorm_stats(x: Tile, stats: Tile, *, seen: int, last: bool, eps: float) -> Operation:
    """Merge x (R, C) into stats (R, 2) = (mean, sum of squared deviations) of the `seen` columns before it.

    By the pairwise update of Chan, Golub and LeVeque. seen = 0 starts; `last` turns the second column into rstd = 1 /
    sqrt(variance + eps). Kernel: layernorm_stats(x, stats, seen, last, eps).
    """
    expect("layernorm_stats", stats, (x.shape[0], 2))
    return Operation("layernorm_stats", (x, stats), "ru" if seen else "rw", (seen, last, float(eps)))


def layernorm(x: Tile, stats: Tile, gain: Tile, bias: Tile, y: Tile) -> Operation:
    """Compute y (R, C), T, from x (R, C), stats (R, 2) = (mean, rstd), and gain and bias (C,).

    Kernel: layernorm(x, stats, gain, bias, y).
    """
    expect("layernorm", y, x.shape)
    expect("layernorm", gain, x.shape[1:])
    return Operation("layernorm", (x, stats, gain, bias, y), "rrrrw")


def layernorm_whole(x: Tile, gain: Tile, bias: Tile, stats: Tile, y: Tile, *, eps: float) -> Operation:
    """Compute stats (R, 2) = (mean, rstd) and y (R, C), T, from whole rows x (R, C).

    `layernorm` with these stats gives the same bits of y. Kernel: layernorm_whole(x, gain, bias, stats, y, eps).
    """
    expect("layernorm_whole", y, x.shape)
    expect("layernorm_whole", gain, x.shape[1:])
    expect("layernorm_whole", stats, (x.shape[0], 2))
    return Operation("layernorm_whole", (x, gain, bias, stats, y), "rrrww", (float(eps),))


def layernorm_sums(
    dinp: Tile, x: Tile, stats: Tile, gain: Tile, sums: Tile, *, accumulate: bool
) -> Operation:
    """Compute sums (R, 2) (+)= row sums of (dinp gain, dinp gain xhat), xhat = (x - mean) rstd. dinp (R, C) is dloss/dy.

    Kernel: layernorm_sums(dinp, x, stats, gain, sums, accumulate).
    """
    expect("layernorm_sums", dinp, x.shape)
    return Operation("layernorm_sums", (dinp, x, stats, gain, sums), "rrrru" if accumulate else "rrrrw", (accumulate,))


def layernorm_backward(
    dinp: Tile, x: Tile, stats: Tile, gain: Tile, sums: Tile, dx: Tile, *, width: int, accumulate: bool
) -> Operation:
    """Compute dx (R, C) (+)= rstd (dinp gain - sums[:, 0] / width - xhat sums[:, 1] / width).

    Kernel: layernorm_backward(dinp, x, stats, gain, sums, dx, width, accumulate).
    """
    expect("layernorm_backward", dx, x.shape)
    access = "rrrrru" if accumulate else "rrrrrw"
    return Operation("layernorm_backward", (dinp, x, stats, gain, sums, dx), access, (width, accumulate))


def layernorm_whole_backward(
    dinp: Tile, x: Tile, stats: Tile, gain: Tile, dx: Tile, dgain: Tile, dbias: Tile,
    *, accumulate: bool, begun: bool,
) -> Operation:  # fmt: skip
    """Compute dx (R, C), dgain (C,) and dbias (C,) for whole rows, as layernorm_sums, _backward and _gradients do.

    accumulate: dx is added to. begun: dgain and dbias are added to.
    Kernel: layernorm_whole_backward(dinp, x, stats, gain, dx, dgain, dbias, accumulate, begun).
    """
    for tile in (dinp, dx):
        expect("layernorm_whole_backward", tile, x.shape)
    for tile in (gain, dgain, dbias):
        expect("layernorm_whole_backward", tile, x.shape[1:])
    access = "rrrr" + ("u" if accumulate else "w") + ("uu" if begun else "ww")
    operands = (dinp, x, stats, gain, dx, dgain, dbias)
    return Operation("layernorm_whole_backward", operands, access, (accumulate, begun))


def layernorm_gradients(
    dinp: Tile, x: Tile, stats: Tile, dgain: Tile, dbias: Tile, *, accumulate: bool
) -> Operation:
    """Compute dgain (C,) (+)= column sums of dinp xhat, and dbias (C,) (+)= column sums of dinp.

    Kernel: layernorm_gradients(dinp, x, stats, dgain, dbias, accumulate).
    """
    expect("layernorm_gradients", dgain, x.shape[1:])
    access = "rrruu" if accumulate else "rrrww"
    return Operation("layernorm_gradients", (dinp, x, stats, dgain, dbias), access, (accumulate,))
