"""Layer normalization, as a kind of `Norm`. asynctile/ops/layernorm.py defines the arithmetic."""

from __future__ import annotations

from asynctile import ops
from asynctile.layers.norm import Norm
from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile


def _gather(x: Tile, stats: Tile, *, seen: int, last: bool, width: int, eps: float) -> Operation:
    """Return `layernorm_stats`, whose mean needs no width: it follows the columns seen so far."""
    return ops.layernorm_stats(x, stats, seen=seen, last=last, eps=eps)


#: The statistics of a row are its mean and rstd.
LAYERNORM = Norm(
    tensors=("weight", "bias"), numbers=2, whole=ops.layernorm_whole, whole_backward=ops.layernorm_whole_backward,
    gather=_gather, apply=ops.layernorm, sums=ops.layernorm_sums, gradients=ops.layernorm_gradients,
    back=ops.layernorm_backward,
)  # fmt: skip
