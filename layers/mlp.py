"""The MLP of a block, one column tile of its hidden layer after another: `MLP`.

The hidden layer is several times as wide as the residual stream. Taken tile by tile, only one of its tiles for each row tile
has to stay near, and every sum keeps the order that whole layers would have.

Legend: R rows of a row tile, F columns of a hidden tile, f its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asynctile.layers import linear
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.program.operation import Operation

#: The hidden layer before its activation, or its gradients: a grid (R, F) for each layer that leads to it.
Hidden = tuple[Grid, ...]


@dataclass(frozen=True, kw_only=True)
class MLP:
    """The second half of a block. title: of its layers, with {} for the number of the block.

    layers: those that lead to the hidden layer. names: of their grids. output: the layer back to the residual stream.
    activate: the verb of the activation, from a tile of each grid to one (R, F).
    activate_backward: records, for tile f of a title's hidden layer, the activation again, into the grid `activated`, and its
    gradient: the last grid of `gradients` holds that of the output, and all hold those of the hidden layer afterwards.
    adds_bias: whether it also computes the gradient of the layers' biases.
    """

    title: str
    layers: tuple[str, ...]
    names: tuple[str, ...]
    output: str
    activate: Callable[..., Operation]
    activate_backward: Callable[[Recording, RowTiles, str, int, Hidden, Grid, Hidden], None]
    adds_bias: bool = False

    def forward(self, recording: Recording, rows: RowTiles, layer: int, x: Grid, residual: Grid, out: Grid) -> Hidden:
        """Compute out = residual + mlp(x); return the hidden layer, which backward may keep."""
        title, split = self.title.format(layer), recording.tiling["hidden"]
        hidden = self._grids(recording, f"{title}.")
        for f in range(len(split)):
            self._expand(recording, rows, title, x, f, hidden)
            activated = recording.grid(f"{title}.activated", split)
            for row in rows:
                recording.program.add(self.activate(*(grid[row.index, f] for grid in hidden), activated.new(row, f)))
            visits = [(f, n) for n in recording.columns]
            linear.forward(recording, rows, activated, f"{title}.{self.output}", visits, out, residual)
        return hidden

    def backward(
        self, recording: Recording, rows: RowTiles, layer: int, hidden: Hidden | None, x: Grid, dresidual: Grid, dinp: Grid
    ) -> None:
        """Compute dinp (+)= the gradient of x, from the residual stream's gradient after the MLP; hidden tiles in reverse.

        hidden: the result of `forward`, or None to recompute each tile just before it is needed.
        """
        title, split = self.title.format(layer), recording.tiling["hidden"]
        output = f"{title}.{self.output}"
        dprojected = linear.residual_backward(recording, rows, dresidual, output, f"{title}.dprojected")
        again = self._grids(recording, f"{title}.") if hidden is None else hidden
        gradients = self._grids(recording, f"{title}.d")
        for f in reversed(range(len(split))):
            if hidden is None:
                self._expand(recording, rows, title, x, f, again)
            visits = [(f, n) for n in reversed(recording.columns)]
            linear.backward(recording, rows, None, dprojected, output, visits, gradients[-1])
            activated = recording.grid(f"{title}.activated", split)
            self.activate_backward(recording, rows, title, f, again, activated, gradients)
            linear.backward(recording, rows, activated, dprojected, output, visits, None)
            visits = [(k, f) for k in reversed(recording.columns)]
            for name, gradient in reversed(list(zip(self.layers, gradients, strict=True))):
                if not self.adds_bias:
                    linear.bias_backward(recording, rows, gradient, f"{title}.{name}", [f])
                linear.backward(recording, rows, x, gradient, f"{title}.{name}", visits, dinp)

    def _grids(self, recording: Recording, begin: str) -> Hidden:
        return tuple(recording.grid(f"{begin}{name}", recording.tiling["hidden"]) for name in self.names)

    def _expand(self, recording: Recording, rows: RowTiles, title: str, x: Grid, f: int, hidden: Hidden) -> None:
        visits = [(k, f) for k in recording.columns]
        for name, grid in zip(self.layers, hidden, strict=True):
            linear.forward(recording, rows, x, f"{title}.{name}", visits, grid)
