"""Linear layers tile by tile: out = x W + b, and the gradients of x, W and b.

The caller gives the order in which weight tiles are visited. Each tile is used for all row tiles at once, so it is loaded once.
attention.py and mlp.py define the layers. The head has its own loops (head.py).

Legend: R rows of a row tile, K and N rows and columns of a weight tile, r, k, n their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from asynctile.layers.parameters import Key, Parameter
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.layers.rows import Row
from asynctile.ops import column_sums, column_sums_copy, gemm


def forward(
    recording: Recording, rows: RowTiles, x: Grid, layer: str, visits: Iterable[Key], out: Grid, residual: Grid | None = None
) -> None:
    """Compute out[r, n] (R, N) (+)= x[r, k] (R, K) W[k, n] for (k, n) in visits; the bias is added with the last k.

    For each n, k must ascend. residual (R, N): added to the first product of each output tile.
    """
    weight, bias = recording.parameters.pair(layer)
    last = len(weight.rows) - 1
    add = recording.program.add
    for k, n in visits:
        w = weight.compute[k, n]
        b = bias.compute[n, 0] if k == last else None
        for row in rows:
            tile, begun = out.open(row, n)
            source = residual[row.index, n] if residual and not begun else None
            add(recording.product(x[row.index, k], w, tile, accumulate=begun, bias=b, source=source))


def backward(
    recording: Recording, rows: RowTiles, x: Grid, dout: Grid, layer: str, visits: Iterable[Key], dinp: Grid
) -> None:
    """Compute dinp[r, k] (+)= dout[r, n] W[k, n]^T and dweight[k, n] (+)= x[r, k]^T dout[r, n] for (k, n) in visits."""
    weight, _ = recording.parameters.pair(layer)
    for key in visits:
        for row in rows:
            _add_to_input(recording, row, dout, weight, key, dinp)
            _add_to_weight(recording, row, x, dout, weight, key)
        recording.gradients.settle(weight, rows[-1], *key)


def input_backward(
    recording: Recording, rows: RowTiles, dout: Grid, layer: str, visits: Iterable[Key], dinp: Grid
) -> None:
    """Compute only dinp, the first half of `backward`, for callers that make x after it."""
    weight, _ = recording.parameters.pair(layer)
    for key in visits:
        for row in rows:
            _add_to_input(recording, row, dout, weight, key, dinp)


def weight_backward(
    recording: Recording, rows: RowTiles, x: Grid, dout: Grid, layer: str, visits: Iterable[Key]
) -> None:
    """Compute only dweight, the second half of `backward`."""
    weight, _ = recording.parameters.pair(layer)
    for key in visits:
        for row in rows:
            _add_to_weight(recording, row, x, dout, weight, key)
        recording.gradients.settle(weight, rows[-1], *key)


def _add_to_input(recording: Recording, row: Row, dout: Grid, weight: Parameter, key: Key, dinp: Grid) -> None:
    k, n = key
    dx, begun = dinp.open(row, k)
    recording.program.add(gemm(dout[row.index, n], weight.compute[key], dx, tb=True, accumulate=begun))


def _add_to_weight(recording: Recording, row: Row, x: Grid, dout: Grid, weight: Parameter, key: Key) -> None:
    k, n = key
    dweight, begun = recording.gradients.open(weight, k, n)
    recording.program.add(gemm(x[row.index, k], dout[row.index, n], dweight, ta=True, accumulate=begun))


def bias_backward(recording: Recording, rows: RowTiles, dout: Grid, layer: str, columns: Iterable[int]) -> None:
    """Compute dbias[n] (N,) (+)= column sums of dout[r, n] for n in columns."""
    _, bias = recording.parameters.pair(layer)
    gradients = recording.gradients
    for n in columns:
        for row in rows:
            dbias, begun = gradients.open(bias, n)
            recording.program.add(column_sums(dout[row.index, n], dbias, accumulate=begun))
        gradients.settle(bias, rows[-1], n)


def residual_backward(recording: Recording, rows: RowTiles, dout: Grid, layer: str, name: str) -> Grid:
    """Compute dbias of the layer that wrote to the residual stream; return the stream's gradient as GEMMs read it.

    The result is dout itself, or a copy called `name` in the GEMMs' dtype, made in the pass that sums.
    """
    columns = reversed(recording.columns)
    if dout.dtype == recording.parameters.compute_dtype:
        bias_backward(recording, rows, dout, layer, columns)
        return dout
    narrow = recording.grid(name, recording.tiling.model)
    _, bias = recording.parameters.pair(layer)
    gradients = recording.gradients
    for n in columns:
        for row in rows:
            dbias, begun = gradients.open(bias, n)
            recording.program.add(column_sums_copy(dout[row.index, n], dbias, narrow.new(row, n), accumulate=begun))
        gradients.settle(bias, rows[-1], n)
    return narrow
