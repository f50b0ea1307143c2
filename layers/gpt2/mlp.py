"""The MLP of GPT-2: c_fc, GELU, c_proj."""

from __future__ import annotations

from asynctile.layers.mlp import MLP, Hidden
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import gelu, gelu_and_backward


def _activate_backward(
    recording: Recording, rows: RowTiles, title: str, f: int, hidden: Hidden, activated: Grid, gradients: Hidden
) -> None:
    """Turn the gradient after GELU in place into that before it; also compute c_fc's dbias."""
    bias = recording.parameters.titled(f"{title}.c_fc.bias")
    for row in rows:
        r = row.index
        dbias, begun = recording.gradients.open(bias, f)
        recording.program.add(gelu_and_backward(
            hidden[0][r, f], activated.new(row, f), gradients[0][r, f], dbias, accumulate=begun))
    recording.gradients.settle(bias, rows[-1], f)


FEED_FORWARD = MLP(
    title="h.{}.mlp", layers=("c_fc",), names=("hidden",), output="c_proj", activate=gelu, activate_backward=_activate_backward,
    adds_bias=True,
)  # fmt: skip
