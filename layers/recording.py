"""The objects that every layer needs while a program is recorded: the program, its inputs, and grids of activation tiles.

The layers record operations, step.py defines their order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asynctile.layers.gradients import Gradients
from asynctile.layers.parameters import Key, Parameter, Parameters
from asynctile.layers.rows import Row, Rows
from asynctile.layers.split import Split
from asynctile.ops import copy, gemm
from asynctile.ops.adamw import HYPER
from asynctile.program.operation import Operation
from asynctile.program.precision import FP32
from asynctile.program.program import Program
from asynctile.storage.tile import Tile


class Grid:
    """Temporaries of one dtype by (row tile, column tile). Each tile is made when it is first opened."""

    __slots__ = ("_name", "_program", "_shape", "_tiles", "dtype")

    def __init__(
        self, program: Program, name: str, shape: Callable[[Row, int], tuple[int, ...]], dtype: Any = FP32
    ) -> None:
        self._program = program
        self._name = name
        self._shape = shape
        self.dtype = dtype
        self._tiles: dict[tuple[int, int], Tile] = {}

    def __getitem__(self, key: tuple[int, int]) -> Tile:
        """Return the tile of (row.index, column); KeyError if it was never opened."""
        return self._tiles[key]

    def open(self, row: Row, column: int = 0) -> tuple[Tile, bool]:
        """Return the tile, and whether it holds contributions already, to which the next one is added."""
        key = (row.index, column)
        tile = self._tiles.get(key)
        if tile is not None:
            return tile, True
        name = f"{self._name}[{row.index},{column}]"
        tile = self._tiles[key] = self._program.tile(name, self._shape(row, column), self.dtype)
        return tile, False

    def new(self, row: Row, column: int = 0) -> Tile:
        """Return a tile that is about to be overwritten whole."""
        return self.open(row, column)[0]


class Weight:
    """A tile of a matrix, as the products of one visit read it.

    A bf16 tile is widened to a float32 temporary if the program computes in float32: when the first row tile asks for it, and
    once on each device that carries some of the row tiles.
    """

    __slots__ = ("_recording", "_tile", "_widened")

    def __init__(self, recording: Recording, tile: Tile) -> None:
        self._recording = recording
        self._tile = tile
        #: the temporaries by device; None: products read the tile itself
        self._widened: dict[int, Tile] | None = None if tile.dtype == recording.parameters.compute_dtype else {}

    def of(self, row: Row) -> Tile:
        """Return the tile that the products of a row tile read."""
        if self._widened is None:
            return self._tile
        device = self._recording.device_of(row)
        if device not in self._widened:
            program, tile = self._recording.program, self._tile
            self._widened[device] = program.tile(f"{tile.name}.float32", tile.shape)
            program.add(copy(tile, self._widened[device]))
        return self._widened[device]


@dataclass(frozen=True, slots=True)
class Cached:
    """The cache that the rows of one row tile of a generation program attend to: their sequences began in earlier programs.

    pages: by layer and group of heads, one tile for each page; it holds the page's keys and, below them, its values. owners,
    sequences: int32, the sequence of each page and of each row, as in asynctile/ops/attention_page.py.
    """

    pages: Mapping[tuple[int, int], Sequence[Tile]]
    owners: Tile
    sequences: Tile


class Recording:
    """One program that is being recorded.

    tokens, targets: int32 (R,) by row tile; targets only if a loss is wanted. positions: int32 (R,) by row tile, the position
    of each row in its text or example; empty if each sequence is one example. scale: (1,), 1 / the number of targets that
    count. scale and gradients exist only if there is a backward pass. cached: by row tile; None if rows are whole sequences.
    product: the operation that multiplies matrices. wanted: the rows whose logits are fetched, the first of each row tile.
    adapters: the adapters of layers that are recorded in part, by direction, layer and first row tile (adapter.py).

    carriers: the device of each replica, or in a forward pass of each group of row tiles; none: one device carries all.
    """

    cached: Sequence[Cached] | None = None
    product: Callable[..., Operation] = staticmethod(gemm)

    def __init__(
        self, kind: str, parameters: Parameters, rows: Rows, on_host: Collection[Tile] = (), carriers: Sequence[int] = ()
    ) -> None:
        self.program = Program(kind)
        self.parameters = parameters
        self.config = parameters.config
        self.tiling = parameters.tiling
        self.rows = self.wanted = rows
        self.adapters: dict[Hashable, Any] = {}
        self.tokens = self._by_row("tokens")
        self.positions = self._by_row("positions") if rows.packed else []
        self.targets: list[Tile] = [] if kind in ("logits", "decode") else self._by_row("targets")
        self.backward = kind not in ("loss", "logits", "decode")
        if self.backward:
            self.scale = self.program.input("scale", (1,), np.float32)
            updates = kind != "gradients"
            hyper = self.program.input("hyper", (HYPER,), np.float32) if updates else None
            self.gradients = Gradients(self.program, kind, rows, hyper, on_host)
        #: the device of each row tile by its index, if several devices carry rows
        self._devices: dict[int, int] = {}
        if carriers:
            parts = rows.by_replica if self.backward else rows.groups
            self._devices |= {row.index: device for part, device in zip(parts, carriers, strict=True) for row in part}

    def weight(self, parameter: Parameter, key: Key) -> Weight:
        """Return a tile of a matrix for the products of one visit."""
        return Weight(self, parameter.compute[key])

    def device_of(self, row: Row) -> int:
        """Return the number of the device that carries a row tile."""
        return self._devices.get(row.index, 0)

    @property
    def columns(self) -> range:
        """The column tiles of the residual stream."""
        return range(len(self.tiling.model))

    def grid(self, name: str, split: Split, dtype: Any = None) -> Grid:
        """Return a grid of activations (R, C), columns cut by `split`, by default in the dtype that GEMMs read."""
        dtype = self.parameters.compute_dtype if dtype is None else dtype
        return Grid(self.program, name, lambda row, column: (row.size, split.size(column)), dtype)

    def residual(self, name: str) -> Grid:
        """Return a grid for the residual stream (R, C) or its gradient.

        It is float32 in every precision, because it adds up layers.
        """
        return self.grid(name, self.tiling.model, FP32)

    def per_row(self, name: str, width: int) -> Grid:
        """Return a grid of a few numbers for each row, (R, width)."""
        return Grid(self.program, name, lambda row, column: (row.size, width))

    def per_vector(self, name: str, split: Split) -> Grid:
        """Return a grid of one row for each row tile, such as its part of a gradient, (N,), cut by `split`."""
        return Grid(self.program, name, lambda row, column: (split.size(column),))

    def per_head(self, name: str, times: int) -> Grid:
        """Return a grid of a few numbers for each row and head, (times g, R), by group of heads."""
        return Grid(self.program, name, lambda row, column: (times * self.heads(column), row.size))

    def heads(self, group: int, axis: str = "heads") -> int:
        """Return the number of attention heads in a group, which is a part of `axis`: `heads`, or `key_heads` for its keys."""
        return self.tiling[axis].size(group) // self.config.head_size

    def _by_row(self, name: str) -> list[Tile]:
        return [self.program.input(f"{name}[{row.index}]", (row.size,), np.int32) for row in self.rows]


#: The row tiles that a layer is recorded for: those of one pass, or of all passes.
RowTiles = Sequence[Row]
