"""The gated MLP of LLaMA: gate_proj and up_proj, SwiGLU, down_proj."""

from __future__ import annotations

from asynctile.layers.mlp import MLP, Hidden
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import swiglu, swiglu_and_backward


def _activate_backward(
    recording: Recording, rows: RowTiles, title: str, f: int, hidden: Hidden, activated: Grid, gradients: Hidden
) -> None:
    """Compute the gradient of gate, and turn that of SwiGLU's output in place into that of up."""
    (gate, up), (dgate, dup) = hidden, gradients
    for row in rows:
        r = row.index
        recording.program.add(swiglu_and_backward(
            gate[r, f], up[r, f], activated.new(row, f), dup[r, f], dgate.new(row, f)))


GATED = MLP(
    title="layers.{}.mlp", layers=("gate_proj", "up_proj"), names=("gate", "up"), output="down_proj", activate=swiglu,
    activate_backward=_activate_backward,
)  # fmt: skip
