"""Linear layers tile by tile: out = x W + b, and the gradients of x, W and b.

The caller gives the order in which weight tiles are visited. Each tile is used for all row tiles at once, so it is loaded once.
The families' attention.py and mlp.py define the layers. The head has its own loops (head.py). A weight is stored as W (K, N),
or transposed, with its outputs as rows. A bias is optional, and so is an adapter (adapter.py).

Legend: R rows of a row tile, K and N inputs and outputs of a weight tile, r, k, n their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asynctile.layers import adapter
from asynctile.layers.parameters import Key
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import column_sums, column_sums_copy, copy, gemm


def forward(
    recording: Recording, rows: RowTiles, x: Grid, layer: str, visits: Sequence[Key], out: Grid, residual: Grid | None = None
) -> None:
    """Compute out[r, n] (R, N) (+)= x[r, k] (R, K) W[k, n] for (k, n) in visits; the bias is added with the last k.

    For each n, k must ascend. visits: all k of some n, or all n of some k. residual (R, N): added to the first product of each
    output tile.
    """
    weight, bias = recording.parameters.pair(layer)
    last = weight.inputs - 1
    add = recording.program.add
    for k, n in visits:
        w = recording.weight(weight, weight.through(k, n))
        b = bias.compute[n, 0] if bias is not None and k == last else None
        for row in rows:
            tile, begun = out.open(row, n)
            source = residual[row.index, n] if residual and not begun else None
            operation = recording.product(
                x[row.index, k], w.of(row), tile, tb=weight.transposed, accumulate=begun, bias=b, source=source)
            add(operation)
    adapter.forward(recording, rows, x, layer, visits, out)


def backward(
    recording: Recording, rows: RowTiles, x: Grid | None, dout: Grid, layer: str, visits: Sequence[Key], dinp: Grid | None
) -> None:
    """Compute dinp[r, k] (+)= dout[r, n] W[k, n]^T and dweight[k, n] (+)= x[r, k]^T dout[r, n] for (k, n) in visits.

    visits: as in `forward`. x None: only dinp, for callers that make x after it. dinp None: only dweight. A frozen weight has
    no dweight.
    """
    weight, _ = recording.parameters.pair(layer)
    add, gradients = recording.program.add, recording.gradients
    of_weight = x if weight.trains else None
    for k, n in visits:
        key = weight.through(k, n)
        w = recording.weight(weight, key)
        for row in rows:
            r = row.index
            if dinp is not None:
                dx, begun = dinp.open(row, k)
                add(gemm(dout[r, n], w.of(row), dx, tb=not weight.transposed, accumulate=begun))
            if of_weight is not None:
                dweight, begun = gradients.open(weight, *key)
                a, b = (dout[r, n], of_weight[r, k]) if weight.transposed else (of_weight[r, k], dout[r, n])
                add(gemm(a, b, dweight, ta=True, accumulate=begun))
        if of_weight is not None:
            gradients.settle(weight, rows[-1], *key)
    adapter.backward(recording, rows, x, dout, layer, visits, dinp)


def bias_backward(
    recording: Recording, rows: RowTiles, dout: Grid, layer: str, columns: Iterable[int], narrow: Grid | None = None
) -> None:
    """Compute dbias[n] (N,) (+)= column sums of dout[r, n] for n in columns; also copy dout to `narrow`, if that is given.

    A layer without a bias, or with a frozen one, only gets the copy.
    """
    _, bias = recording.parameters.pair(layer)
    gradients = recording.gradients
    for n in columns:
        if bias is None or not bias.trains:
            if narrow is not None:
                for row in rows:
                    recording.program.add(copy(dout[row.index, n], narrow.new(row, n)))
            continue
        for row in rows:
            source, (dbias, begun) = dout[row.index, n], gradients.open(bias, n)
            recording.program.add(
                column_sums(source, dbias, accumulate=begun) if narrow is None
                else column_sums_copy(source, dbias, narrow.new(row, n), accumulate=begun))
        gradients.settle(bias, rows[-1], n)


def residual_backward(recording: Recording, rows: RowTiles, dout: Grid, layer: str, name: str) -> Grid:
    """Compute dbias of the layer that wrote to the residual stream; return the stream's gradient as GEMMs read it.

    The result is dout itself, or a copy called `name` in the GEMMs' dtype, made in the pass that sums.
    """
    is_copied = dout.dtype != recording.parameters.compute_dtype
    narrow = recording.grid(name, recording.tiling.model) if is_copied else None
    bias_backward(recording, rows, dout, layer, reversed(recording.columns), narrow)
    return dout if narrow is None else narrow
