"""RMSNorm, as a kind of `Norm`. asynctile/ops/rmsnorm.py defines the arithmetic."""

from __future__ import annotations

from asynctile import ops
from asynctile.layers.norm import Norm

#: The statistic of a row is its rstd.
RMSNORM = Norm(
    tensors=("weight",), numbers=1, whole=ops.rmsnorm_whole, whole_backward=ops.rmsnorm_whole_backward,
    gather=ops.rmsnorm_stats, apply=ops.rmsnorm, sums=ops.rmsnorm_sums, gradients=ops.rmsnorm_gradients,
    back=ops.rmsnorm_backward,
)  # fmt: skip
