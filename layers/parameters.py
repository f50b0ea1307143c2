"""The trained tensors: how each is cut into tiles, and the values that they start from.

`Parameter` is one tensor with its tiles and the tiles of its two moments, `Parameters` all of a model; which there are is
config.py. How they are trained is gradients.py and optimizer.py; reading and writing files is done by whoever holds the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.config import Config, Tensor
from asynctile.layers.split import Split
from asynctile.layers.tiling import Tiling
from asynctile.program.precision import BF16, FP32, compute_dtype
from asynctile.storage.tile import Tile, corner

#: Names of the moments, after a tile's own name.
MOMENTS = ("exp_avg", "exp_avg_sq")
#: New weights are drawn in blocks of this edge, whatever the tile, so that the tile does not change them.
BLOCK = 64

Key = tuple[int, int]


class Parameter:
    """One tensor: a matrix cut by `rows` and `columns`, or a vector cut by `rows` (columns is None, j always 0).

    A tile may have more rows than its part of the tensor (Split.pitch): zeros, in each of its tiles and at any time.
    weights, exp_avg, exp_avg_sq: its tiles by (i, j), float32. compute: what is computed with, by (i, j): `weights`, or,
    where the model computes in bf16 and this is a matrix, `copies` of them in bf16, which AdamW writes with the weights.
    decay: whether AdamW decays it. mean, std: what a new one is drawn from; std 0: constant. title: its name for people.
    """

    def __init__(self, tensor: Tensor, rows: Split, columns: Split | None = None, *, title: str, copied: bool = False) -> None:
        self.name = tensor.name
        self.title = title
        self.rows = rows
        self.columns = columns
        self.decay = tensor.decay
        self.mean = tensor.mean
        self.std = tensor.std
        self.shape = tuple(split.offsets[-1] for split in (rows, columns) if split is not None)
        self.weights: dict[Key, Tile] = {}
        self.exp_avg: dict[Key, Tile] = {}
        self.exp_avg_sq: dict[Key, Tile] = {}
        self.copies: dict[Key, Tile] = {}
        for i, j in self.keys():
            shape, label = self._shape(i, j), self.label(i, j)
            self.weights[i, j] = Tile(label, shape, persistent=True)
            self.exp_avg[i, j] = Tile(f"{label}.{MOMENTS[0]}", shape, persistent=True)
            self.exp_avg_sq[i, j] = Tile(f"{label}.{MOMENTS[1]}", shape, persistent=True)
            if copied:
                self.copies[i, j] = Tile(f"{label}.bf16", shape, BF16, persistent=True)
        self.compute = self.copies or self.weights

    def __repr__(self) -> str:
        return f"<Parameter {self.name} {'x'.join(map(str, self.shape))} in {len(self.weights)} tiles>"

    def keys(self) -> Iterator[Key]:
        """Every (i, j), row by row."""
        columns = 1 if self.columns is None else len(self.columns)
        return ((i, j) for i in range(len(self.rows)) for j in range(columns))

    def index(self, i: int, j: int) -> tuple[slice, ...]:
        """The rectangle of tile (i, j) in the whole tensor, of which a tile is the first rows."""
        if self.columns is None:
            return (self.rows.part(i),)
        return (self.rows.part(i), self.columns.part(j))

    def padding(self, i: int, j: int) -> int:
        """How many elements of tile (i, j), the last ones, are not of the tensor."""
        return self.rows.padding(i) * (1 if self.columns is None else self.columns.size(j))

    def padded(self, piece: NDArray[Any], i: int, j: int) -> NDArray[Any]:
        """A tile's array from its rectangle of the tensor: zeros behind it, if there is room."""
        tile = self.weights[i, j]
        if piece.shape == tile.shape:
            return piece
        whole = np.zeros(tile.shape, piece.dtype)
        corner(whole, piece.shape)[...] = piece
        return whole

    def cut(self, array: NDArray[Any], i: int, j: int) -> NDArray[Any]:
        """Of a tile's array what is of the tensor."""
        return corner(array, tuple(part.stop - part.start for part in self.index(i, j)))

    def label(self, i: int, j: int) -> str:
        """A tile's name for people: h.7.mlp.c_fc.weight[2,0], or h.7.ln_1.bias[2]."""
        where = f"[{i}]" if self.columns is None else f"[{i},{j}]"
        return self.title + where

    def _shape(self, i: int, j: int) -> tuple[int, ...]:
        return (self.rows.size(i),) if self.columns is None else (self.rows.size(i), self.columns.size(j))


class Parameters(Mapping[str, Parameter]):
    """All tensors of a model by Hugging Face name, in the order of a forward pass.

    compute_dtype: of what GEMMs and attention read and write (asynctile/program/precision.py).
    """

    def __init__(self, config: Config, tiling: Tiling, precision: str = "fp32") -> None:
        self.config = config
        self.tiling = tiling
        self.compute_dtype = compute_dtype(precision)
        self._by_name: dict[str, Parameter] = {}
        for tensor in config.tensors():
            cuts = [tiling[axis] for axis in tensor.axes]
            copied = len(cuts) == 2 and self.compute_dtype != FP32
            title = tensor.name.removeprefix(config.prefix)
            self._by_name[tensor.name] = Parameter(tensor, *cuts, title=title, copied=copied)

    def __getitem__(self, name: str) -> Parameter:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def titled(self, title: str) -> Parameter:
        """One tensor by its name without the prefix of its family, such as "wte.weight"."""
        return self._by_name[self.config.prefix + title]

    def pair(self, layer: str) -> tuple[Parameter, Parameter]:
        """Weight (or gain) and bias of a layer, such as "h.0.ln_1"."""
        return self.titled(f"{layer}.weight"), self.titled(f"{layer}.bias")

    def weights(self) -> Iterator[Tile]:
        """Every weight tile, and their copies."""
        for parameter in self._by_name.values():
            yield from parameter.weights.values()
            yield from parameter.copies.values()

    def states(self) -> Iterator[Tile]:
        """Every persistent tile: weights, their copies where there are any, and both moments."""
        for parameter in self._by_name.values():
            for tiles in (parameter.weights, parameter.copies, parameter.exp_avg, parameter.exp_avg_sq):
                yield from tiles.values()


def initial_piece(parameter: Parameter, index: tuple[slice, ...], seed: int) -> NDArray[np.float32]:
    """The values in a rectangle of a new tensor: the same whatever rectangle asks for them.

    Each BLOCK x BLOCK block has its own sequence of a counter-based generator, keyed by seed and name, and is drawn
    whole: any piece can be made alone, without the rest of the tensor.
    """
    shape = tuple(part.stop - part.start for part in index)
    if not parameter.std:
        return np.full(shape, parameter.mean, np.float32)
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{parameter.name}".encode(), digest_size=16).digest(), "little")
    rows, columns = index
    piece = np.empty(shape, np.float32)
    for i in range(rows.start // BLOCK, -(-rows.stop // BLOCK)):
        for j in range(columns.start // BLOCK, -(-columns.stop // BLOCK)):
            generator = np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, j, i], np.uint64)))
            block = generator.standard_normal((BLOCK, BLOCK), np.float32)
            to_rows, from_rows = _overlap(rows, i)
            to_columns, from_columns = _overlap(columns, j)
            piece[to_rows, to_columns] = block[from_rows, from_columns]
    piece *= np.float32(parameter.std)
    piece += np.float32(parameter.mean)
    return piece


def _overlap(part: slice, block: int) -> tuple[slice, slice]:
    """Where a block and a part of an axis meet, counted from the part's begin and from the block's."""
    begin = block * BLOCK
    start, stop = max(part.start, begin), min(part.stop, begin + BLOCK)
    return slice(start - part.start, stop - part.start), slice(start - begin, stop - begin)
