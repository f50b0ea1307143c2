"""The adapters of linear layers tile by tile: out += (x A^T) scaling B^T, and the gradients of x, A and B.

linear.py hands over each portion of a layer's weight tiles after its own products. A portion has all parts k of the inputs for
some parts n of the outputs, or all n for some k, such as those of one hidden tile of an MLP. h = x A^T needs every k, and its
gradient needs every n. So the products that follow wait for the portion that completes them. The tiles that they wait with are
alive until then anyway: the input of the layer, or its output on the residual stream. Backward computes h again. The order of
each sum follows from the portions, and so from the tiling alone.

Legend: R rows of a row tile, K and N inputs and outputs of a weight tile, r, k, n their numbers. h and its gradient (R, rank).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from asynctile.layers.lora import A, B
from asynctile.layers.parameters import Key, Parameter
from asynctile.layers.recording import Grid, Recording, RowTiles
from asynctile.ops import gemm, scale

#: A direction: forward or backward.
D = TypeVar("D", bound="AdapterForward | AdapterBackward")


def forward(recording: Recording, rows: RowTiles, x: Grid, layer: str, visits: Sequence[Key], out: Grid) -> None:
    """Add the adapter of a layer to out[r, n] (R, N), from x[r, k] (R, K), for the (k, n) of a portion.

    A layer without an adapter stays as it is.
    """
    adapter = _under_way(recording, AdapterForward, rows, layer)
    if adapter is not None:
        adapter.take(x, visits, out)
        _leave(recording, adapter, rows, layer, len(visits))


def backward(
    recording: Recording, rows: RowTiles, x: Grid | None, dout: Grid, layer: str, visits: Sequence[Key], dinp: Grid | None
) -> None:
    """Add the adapter's part to dinp[r, k], and compute the gradients of A and B, for the (k, n) of a portion.

    x None: only dinp, for callers that make x after it. dinp None: only the gradients. Each portion is handed over for both.
    """
    adapter = _under_way(recording, AdapterBackward, rows, layer)
    if adapter is not None:
        adapter.take(x, dout, visits, dinp)
        _leave(recording, adapter, rows, layer, len(visits) * ((x is not None) + (dinp is not None)))


class Narrow:
    """The narrow side of an adapter for some row tiles: scaling times the sum of source[r, part] times a tile of A^T or B.

    grid: its tiles (R, rank). ready: whether every part was added, so that the tiles hold their values.
    """

    def __init__(self, recording: Recording, rows: RowTiles, name: str, weight: Parameter, *, transposed: bool) -> None:
        self._recording = recording
        self._rows = rows
        self._tiles = list(weight.weights)
        self._weight = weight
        self._transposed = transposed
        rank = weight.rows if transposed else weight.columns
        assert rank is not None, f"{weight.name} is no matrix"
        self.grid = recording.grid(name, rank)
        self._added: set[int] = set()

    @property
    def ready(self) -> bool:
        return len(self._added) == len(self._tiles)

    def take(self, source: Grid, parts: Iterable[int]) -> None:
        """Add the parts that were not added yet."""
        add = self._recording.program.add
        for part in parts:
            if part in self._added:
                continue
            self._added.add(part)
            matrix = self._weight.compute[self._tiles[part]]
            for row in self._rows:
                tile, begun = self.grid.open(row)
                add(self._recording.product(
                    source[row.index, part], matrix, tile, tb=self._transposed, accumulate=begun))
            if self.ready:
                self._scale()

    def _scale(self) -> None:
        lora = self._recording.parameters.lora
        assert lora is not None, "a model with adapters has their settings"
        if lora.scaling != 1.0:
            for row in self._rows:
                self._recording.program.add(scale(self.grid[row.index, 0], lora.scaling))


class AdapterForward:
    """The adapter of one layer on the way forward, for the row tiles of one pass. left: the visits that are still to come."""

    def __init__(self, recording: Recording, rows: RowTiles, layer: str) -> None:
        self._recording = recording
        self._rows = rows
        a, self._b = _matrices(recording, layer)
        self._h = Narrow(recording, rows, f"{layer}.lora", a, transposed=True)
        #: parts of the outputs that wait for h
        self._outputs: dict[int, None] = {}
        self.left = len(a.weights) * len(self._b.weights)

    def take(self, x: Grid, visits: Sequence[Key], out: Grid) -> None:
        self._h.take(x, _inputs(visits))
        self._outputs |= _outputs(visits)
        if not self._h.ready:
            return
        for n in self._outputs:
            matrix = self._b.compute[n, 0]
            for row in self._rows:
                r = row.index
                self._recording.program.add(self._recording.product(
                    self._h.grid[r, 0], matrix, out[r, n], tb=True, accumulate=True))
        self._outputs = {}


class AdapterBackward:
    """The adapter of one layer on the way back, for the row tiles of one pass. left: the visits that are still to come."""

    def __init__(self, recording: Recording, rows: RowTiles, layer: str) -> None:
        self._recording = recording
        self._rows = rows
        self._a, self._b = _matrices(recording, layer)
        self._h = Narrow(recording, rows, f"{layer}.lora", self._a, transposed=True)
        self._dh = Narrow(recording, rows, f"{layer}.dlora", self._b, transposed=False)
        #: parts that wait: of dinp and of the gradient of A for the gradient of h, of the gradient of B for h
        self._inputs: dict[int, None] = {}
        self._of_a: dict[int, None] = {}
        self._of_b: dict[int, None] = {}
        self.left = 2 * len(self._a.weights) * len(self._b.weights)

    def take(self, x: Grid | None, dout: Grid, visits: Sequence[Key], dinp: Grid | None) -> None:
        inputs, outputs = _inputs(visits), _outputs(visits)
        if x is not None and self._b.trains:
            self._h.take(x, inputs)
            self._of_b |= outputs
        if x is not None and self._a.trains:
            self._of_a |= inputs
        self._dh.take(dout, outputs)
        if dinp is not None:
            self._inputs |= inputs
            self._add_to(dinp)
        # Only now: the operations above still read the matrices that an update changes.
        if x is not None:
            self._gradients(x, dout)

    def _add_to(self, dinp: Grid) -> None:
        """Add to dinp the parts that are ready."""
        if not self._dh.ready:
            return
        for k in self._inputs:
            for row in self._rows:
                dx, begun = dinp.open(row, k)
                operation = gemm(self._dh.grid[row.index, 0], self._a.compute[0, k], dx, accumulate=begun)
                self._recording.program.add(operation)
        self._inputs = {}

    def _gradients(self, x: Grid, dout: Grid) -> None:
        """Add the parts that are ready to the gradients of A and B: dA[k] += dh^T x[k], dB[n] += dout[n]^T h."""
        if self._dh.ready:
            for k in self._of_a:
                self._gradient(self._a, (0, k), self._dh.grid, 0, x, k)
            self._of_a = {}
        if self._h.ready:
            for n in self._of_b:
                self._gradient(self._b, (n, 0), dout, n, self._h.grid, 0)
            self._of_b = {}

    def _gradient(self, matrix: Parameter, key: Key, left: Grid, i: int, right: Grid, j: int) -> None:
        """Add left[r, i]^T right[r, j] of all row tiles to the gradient of one tile."""
        gradients = self._recording.gradients
        for row in self._rows:
            r = row.index
            tile, begun = gradients.open(matrix, *key)
            self._recording.program.add(gemm(left[r, i], right[r, j], tile, ta=True, accumulate=begun))
        gradients.settle(matrix, self._rows[-1], *key)


def _under_way(recording: Recording, direction: type[D], rows: RowTiles, layer: str) -> D | None:
    """Return the adapter of a layer on its way through these rows, which begins with the first portion; None if it has none."""
    if recording.parameters.found(f"{layer}.{A}.weight") is None:
        return None
    key = direction, layer, rows[0].index
    found = recording.adapters.get(key)
    if found is None:
        found = recording.adapters[key] = direction(recording, rows, layer)
    return found


def _leave(
    recording: Recording, adapter: AdapterForward | AdapterBackward, rows: RowTiles, layer: str, visits: int
) -> None:
    """Count visits that are done; after the last one the next portion begins anew."""
    adapter.left -= visits
    if not adapter.left:
        del recording.adapters[type(adapter), layer, rows[0].index]


def _matrices(recording: Recording, layer: str) -> tuple[Parameter, Parameter]:
    titled = recording.parameters.titled
    return titled(f"{layer}.{A}.weight"), titled(f"{layer}.{B}.weight")


def _inputs(visits: Iterable[Key]) -> dict[int, None]:
    """Return the parts of the inputs in the order in which they are visited."""
    return dict.fromkeys(k for k, _ in visits)


def _outputs(visits: Iterable[Key]) -> dict[int, None]:
    """Return the parts of the outputs in the order in which they are visited."""
    return dict.fromkeys(n for _, n in visits)
