"""The MLP of GPT-2: c_fc, GELU, c_proj, one column tile of the hidden layer after another.

The hidden layer is four times as wide as the residual stream. Taken tile by tile, only one of its tiles for each row tile has
to stay near, and every sum keeps the order that whole layers would have.

Legend: R rows of a row tile, F columns of a hidden tile, f its number.
"""

from __future__ import annotations

from asynctile.layers import linear
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import gelu, gelu_and_backward


def forward(recording: Recording, rows: RowTiles, layer: int, x: Grid, residual: Grid, out: Grid) -> Grid:
    """Compute out = residual + mlp(x); return the hidden layer (R, F) before GELU, which backward may keep."""
    title = _title(layer)
    hidden = recording.grid(f"{title}.hidden", recording.tiling["hidden"])
    for f in range(len(recording.tiling["hidden"])):
        _expand(recording, rows, title, x, f, hidden)
        activated = _activate(recording, rows, title, hidden, f)
        visits = [(f, n) for n in recording.columns]
        linear.forward(recording, rows, activated, f"{title}.c_proj", visits, out, residual)
    return hidden


def backward(
    recording: Recording, rows: RowTiles, layer: int, hidden: Grid | None, x: Grid, dresidual: Grid, dinp: Grid
) -> None:
    """Compute dinp (+)= the gradient of x, from the residual stream's gradient after the MLP; hidden tiles in reverse.

    hidden: the result of `forward`, or None to recompute each tile just before it is needed.
    """
    title = _title(layer)
    dprojected = linear.residual_backward(recording, rows, dresidual, f"{title}.c_proj", f"{title}.dprojected")
    dhidden = recording.grid(f"{title}.dhidden", recording.tiling["hidden"])
    again = recording.grid(f"{title}.hidden", recording.tiling["hidden"]) if hidden is None else hidden
    for f in reversed(range(len(recording.tiling["hidden"]))):
        if hidden is None:
            _expand(recording, rows, title, x, f, again)
        visits = [(f, n) for n in reversed(recording.columns)]
        linear.backward(recording, rows, None, dprojected, f"{title}.c_proj", visits, dhidden)
        activated = _activate_backward(recording, rows, title, again, f, dhidden)
        linear.backward(recording, rows, activated, dprojected, f"{title}.c_proj", visits, None)
        visits = [(k, f) for k in reversed(recording.columns)]
        linear.backward(recording, rows, x, dhidden, f"{title}.c_fc", visits, dinp)


def _title(layer: int) -> str:
    return f"h.{layer}.mlp"


def _expand(recording: Recording, rows: RowTiles, title: str, x: Grid, f: int, hidden: Grid) -> None:
    linear.forward(recording, rows, x, f"{title}.c_fc", [(k, f) for k in recording.columns], hidden)


def _activate(recording: Recording, rows: RowTiles, title: str, hidden: Grid, f: int) -> Grid:
    activated = recording.grid(f"{title}.activated", recording.tiling["hidden"])
    for row in rows:
        recording.program.add(gelu(hidden[row.index, f], activated.new(row, f)))
    return activated


def _activate_backward(recording: Recording, rows: RowTiles, title: str, hidden: Grid, f: int, dhidden: Grid) -> Grid:
    """Recompute GELU's output, and turn dhidden[r, f] in place into the gradient before GELU; also compute c_fc's dbias."""
    bias = recording.parameters.titled(f"{title}.c_fc.bias")
    activated = recording.grid(f"{title}.activated", recording.tiling["hidden"])
    for row in rows:
        r = row.index
        dbias, begun = recording.gradients.open(bias, f)
        recording.program.add(gelu_and_backward(
            hidden[r, f], activated.new(row, f), dhidden[r, f], dbias, accumulate=begun))
    recording.gradients.settle(bias, rows[-1], f)
    return activated
