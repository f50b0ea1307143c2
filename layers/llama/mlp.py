"""The gated MLP of LLaMA: gate_proj and up_proj, SwiGLU, down_proj, one column tile of the hidden layer after another.

As in GPT-2, only one tile of each hidden grid has to stay near for each row tile.

Legend: R rows of a row tile, F columns of a hidden tile, f its number.
"""

from __future__ import annotations

from typing import NamedTuple

from asynctile.layers import linear
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import swiglu, swiglu_and_backward


class Gated(NamedTuple):
    """The hidden layer before SwiGLU: gate and up (R, F)."""

    gate: Grid
    up: Grid


def forward(recording: Recording, rows: RowTiles, layer: int, x: Grid, residual: Grid, out: Grid) -> Gated:
    """Compute out = residual + mlp(x); return the hidden layer, which backward may keep."""
    title, hidden = _title(layer), _hidden(recording, layer)
    for f in range(len(recording.tiling["hidden"])):
        _expand(recording, rows, title, x, f, hidden)
        activated = recording.grid(f"{title}.activated", recording.tiling["hidden"])
        for row in rows:
            r = row.index
            recording.program.add(swiglu(hidden.gate[r, f], hidden.up[r, f], activated.new(row, f)))
        visits = [(f, n) for n in recording.columns]
        linear.forward(recording, rows, activated, f"{title}.down_proj", visits, out, residual)
    return hidden


def backward(
    recording: Recording, rows: RowTiles, layer: int, hidden: Gated | None, x: Grid, dresidual: Grid, dinp: Grid
) -> None:
    """Compute dinp (+)= the gradient of x, from the residual stream's gradient after the MLP; hidden tiles in reverse.

    hidden: the result of `forward`, or None to recompute each tile just before it is needed.
    """
    title, split = _title(layer), recording.tiling["hidden"]
    dprojected = linear.residual_backward(recording, rows, dresidual, f"{title}.down_proj", f"{title}.dprojected")
    again = _hidden(recording, layer) if hidden is None else hidden
    dgate, dup = recording.grid(f"{title}.dgate", split), recording.grid(f"{title}.dup", split)
    for f in reversed(range(len(split))):
        if hidden is None:
            _expand(recording, rows, title, x, f, again)
        visits = [(f, n) for n in reversed(recording.columns)]
        linear.backward(recording, rows, None, dprojected, f"{title}.down_proj", visits, dup)
        activated = _activate_backward(recording, rows, title, again, f, dgate, dup)
        linear.backward(recording, rows, activated, dprojected, f"{title}.down_proj", visits, None)
        visits = [(k, f) for k in reversed(recording.columns)]
        for name, gradient in (("up_proj", dup), ("gate_proj", dgate)):
            linear.bias_backward(recording, rows, gradient, f"{title}.{name}", [f])
            linear.backward(recording, rows, x, gradient, f"{title}.{name}", visits, dinp)


def _title(layer: int) -> str:
    return f"layers.{layer}.mlp"


def _hidden(recording: Recording, layer: int) -> Gated:
    split, title = recording.tiling["hidden"], _title(layer)
    return Gated(recording.grid(f"{title}.gate", split), recording.grid(f"{title}.up", split))


def _expand(recording: Recording, rows: RowTiles, title: str, x: Grid, f: int, hidden: Gated) -> None:
    visits = [(k, f) for k in recording.columns]
    linear.forward(recording, rows, x, f"{title}.gate_proj", visits, hidden.gate)
    linear.forward(recording, rows, x, f"{title}.up_proj", visits, hidden.up)


def _activate_backward(
    recording: Recording, rows: RowTiles, title: str, hidden: Gated, f: int, dgate: Grid, dup: Grid
) -> Grid:
    """Recompute SwiGLU's output; compute dgate, and turn dup[r, f], the gradient of that output, in place into that of up."""
    activated = recording.grid(f"{title}.activated", recording.tiling["hidden"])
    for row in rows:
        r = row.index
        recording.program.add(swiglu_and_backward(
            hidden.gate[r, f], hidden.up[r, f], activated.new(row, f), dup[r, f], dgate.new(row, f)))
    return activated
