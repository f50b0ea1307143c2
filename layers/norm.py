"""Normalization of the residual stream, whose rows are cut into column tiles: `Norm`, by the verbs of one kind.

Outputs are recomputed from x and the statistics wherever they are needed. That costs a pass over the tile; keeping them would
cost a tile of memory. The kinds differ in their verbs, in their tensors and in how many statistics a row has
(asynctile/ops/layernorm.py, asynctile/ops/rmsnorm.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asynctile.layers.parameters import Parameter
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.program.operation import Operation
from asynctile.storage.tile import Tile

#: A verb: tiles and settings to an operation.
Verb = Callable[..., Operation]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A kind of normalization.

    tensors: the names of its tensors, the gain first. numbers: the statistics of a row, and the sums of its backward pass.
    whole, whole_backward: the verbs for whole rows. gather, apply, sums, gradients, back: those for rows in pieces. Each verb
    takes a tile for each of `tensors`, or for each of their gradients.
    """

    tensors: tuple[str, ...]
    numbers: int
    whole: Verb
    whole_backward: Verb
    gather: Verb
    apply: Verb
    sums: Verb
    gradients: Verb
    back: Verb

    def forward(self, recording: Recording, rows: RowTiles, x: Grid, layer: str) -> tuple[Grid, Grid]:
        """Return y (R, C) by column tile, and the statistics (R, numbers) by row tile."""
        if len(recording.columns) > 1:
            stats = self._gathered(recording, rows, x, layer)
            return self.again(recording, rows, x, stats, layer), stats
        weights = [parameter.compute[0, 0] for parameter in self._parameters(recording, layer)]
        y, stats = recording.grid(layer, recording.tiling.model), recording.per_row(f"{layer}.stats", self.numbers)
        eps = recording.config.norm_epsilon
        for row in rows:
            recording.program.add(self.whole(x[row.index, 0], *weights, stats.new(row), y.new(row), eps=eps))
        return y, stats

    def again(self, recording: Recording, rows: RowTiles, x: Grid, stats: Grid, layer: str) -> Grid:
        """Recompute y (R, C) by column tile, with the same bits as `forward`."""
        parameters = self._parameters(recording, layer)
        y = recording.grid(layer, recording.tiling.model)
        for k in recording.columns:
            weights = [parameter.compute[k, 0] for parameter in parameters]
            for row in rows:
                r = row.index
                recording.program.add(self.apply(x[r, k], stats[r, 0], *weights, y.new(row, k)))
        return y

    def backward(
        self, recording: Recording, rows: RowTiles, x: Grid, stats: Grid, dinp: Grid, layer: str, dx: Grid
    ) -> None:
        """Compute dx (R, C) (+)= the gradient of x from dinp (R, C), that of the output; also the gradients of the tensors."""
        through = self._backward_in_pieces if len(recording.columns) > 1 else self._backward_whole
        through(recording, rows, x, stats, dinp, layer, dx)

    def _parameters(self, recording: Recording, layer: str) -> list[Parameter]:
        return [recording.parameters.titled(f"{layer}.{name}") for name in self.tensors]

    def _backward_whole(
        self, recording: Recording, rows: RowTiles, x: Grid, stats: Grid, dinp: Grid, layer: str, dx: Grid
    ) -> None:
        parameters = self._parameters(recording, layer)
        gain = parameters[0].compute[0, 0]
        for row in rows:
            r = row.index
            tile, accumulate = dx.open(row)
            gradients, begun = _opened(recording, parameters, 0)
            recording.program.add(self.whole_backward(
                dinp[r, 0], x[r, 0], stats[r, 0], gain, tile, *gradients, accumulate=accumulate, begun=begun))
        _settle(recording, parameters, rows, 0)

    def _backward_in_pieces(
        self, recording: Recording, rows: RowTiles, x: Grid, stats: Grid, dinp: Grid, layer: str, dx: Grid
    ) -> None:
        """Make two passes over the columns, there and back. The first gathers the sums over whole rows."""
        parameters = self._parameters(recording, layer)
        sums = recording.per_row(f"{layer}.sums", self.numbers)
        add = recording.program.add
        width = recording.tiling.model.offsets[-1]
        trains = any(parameter.trains for parameter in parameters)
        for k in recording.columns:
            gain = parameters[0].compute[k, 0]
            for row in rows:
                r = row.index
                tile, begun = sums.open(row)
                add(self.sums(dinp[r, k], x[r, k], stats[r, 0], gain, tile, accumulate=begun))
                if trains:
                    gradients, begun = _opened(recording, parameters, k)
                    add(self.gradients(dinp[r, k], x[r, k], stats[r, 0], *gradients, accumulate=begun))
        for k in reversed(recording.columns):
            gain = parameters[0].compute[k, 0]
            for row in rows:
                r = row.index
                tile, begun = dx.open(row, k)
                add(self.back(dinp[r, k], x[r, k], stats[r, 0], gain, sums[r, 0], tile, width=width, accumulate=begun))
            if trains:  # settle only now: the operation above still reads the gain
                _settle(recording, parameters, rows, k)

    def _gathered(self, recording: Recording, rows: RowTiles, x: Grid, layer: str) -> Grid:
        """Return the statistics, gathered column tile by column tile."""
        stats = recording.per_row(f"{layer}.stats", self.numbers)
        split, eps = recording.tiling.model, recording.config.norm_epsilon
        last, width = len(split) - 1, split.offsets[-1]
        for row in rows:
            for k, (start, _) in enumerate(split):
                recording.program.add(self.gather(
                    x[row.index, k], stats.new(row), seen=start, last=k == last, width=width, eps=eps))
        return stats


def _opened(recording: Recording, parameters: list[Parameter], k: int) -> tuple[list[Tile], bool]:
    """Return the gradients of the tensors' parts k, and whether they hold contributions already."""
    opened = [recording.gradients.open(parameter, k) for parameter in parameters]
    return [tile for tile, _ in opened], opened[0][1]


def _settle(recording: Recording, parameters: list[Parameter], rows: RowTiles, k: int) -> None:
    for parameter in parameters:
        recording.gradients.settle(parameter, rows[-1], k)
