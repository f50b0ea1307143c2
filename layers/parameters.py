"""The tensors of a model: how each is cut into tiles, and its initial values.

`Parameter` is one tensor with its tiles and the tiles of its two moments. `Parameters` is all tensors of a model. config.py
defines the tensors, lora.py those of adapters, and tuning.py says which of them are trained. gradients.py and optimizer.py
train them. The owner of the engine reads and writes files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.config import STATES_NBYTES, WEIGHT_NBYTES, Config, Tensor
from asynctile.layers.lora import PREFIX, RANK, LoRA, title_of
from asynctile.layers.split import Split
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import WHOLE, Tuning
from asynctile.program.precision import BF16, FP32, compute_dtype
from asynctile.storage.tile import Tile, corner

#: Suffixes of a tile's name that name its moments.
MOMENTS = ("exp_avg", "exp_avg_sq")
#: New weights are drawn in blocks of this edge, so that they do not depend on the tile.
BLOCK = 64

Key = tuple[int, int]


class Parameter:
    """One tensor: a matrix cut by `rows` and `columns`, or a vector cut by `rows` (columns is None, j always 0).

    A tile may have more rows than its part of the tensor (Split.pitch). The extra rows are zeros, in all four families of tiles
    and at any time.

    weights, exp_avg, exp_avg_sq: the tiles by (i, j), float32. copies: bf16 copies of the weights, if this is a matrix and the
    model computes in bf16. AdamW writes them together with the weights. compute: the tiles that operations read, `copies` if
    there are any, otherwise `weights`. trains: whether the tensor is trained; if it is frozen, it has no moments. adapts:
    whether it belongs to an adapter. decay: whether AdamW decays the tensor. mean, std: the normal distribution of new values;
    bound: half the width of their uniform distribution; both 0: constant. transposed: whether the rows of a layer's weight are
    its outputs. title: the name without the prefixes of adapters and of the family.

    stored: whether the weights are bf16 instead of float32, as a file has them. They never change, so they have no moments.
    """

    def __init__(
        self, tensor: Tensor, rows: Split, columns: Split | None = None, *, title: str, copied: bool = False,
        trains: bool = True, stored: bool = False,
    ) -> None:
        self.name = tensor.name
        self.title = title
        self.rows = rows
        self.columns = columns
        self.decay = tensor.decay
        self.transposed = tensor.transposed
        self.mean = tensor.mean
        self.std = tensor.std
        self.bound = tensor.bound
        self.adapts = tensor.name.startswith(PREFIX)
        self.trains = trains
        self.stored = stored
        self.shape = tuple(split.offsets[-1] for split in (rows, columns) if split is not None)
        self.weights = self._tiles(dtype=BF16 if stored else FP32)
        self.exp_avg, self.exp_avg_sq = self._moments()
        self.copies = self._tiles(".bf16", BF16) if copied else {}
        self.compute = self.copies or self.weights

    def __repr__(self) -> str:
        return f"<Parameter {self.name} {'x'.join(map(str, self.shape))} in {len(self.weights)} tiles>"

    def keys(self) -> Iterator[Key]:
        """Yield every (i, j), row by row."""
        columns = 1 if self.columns is None else len(self.columns)
        return ((i, j) for i in range(len(self.rows)) for j in range(columns))

    def index(self, i: int, j: int) -> tuple[slice, ...]:
        """Return the rectangle of tile (i, j) in the whole tensor. It fills the first rows of the tile."""
        if self.columns is None:
            return (self.rows.part(i),)
        return (self.rows.part(i), self.columns.part(j))

    def padding(self, i: int, j: int) -> int:
        """Return how many elements of tile (i, j), the last ones, are padding and not part of the tensor."""
        return self.rows.padding(i) * (1 if self.columns is None else self.columns.size(j))

    def padded(self, piece: NDArray[Any], i: int, j: int) -> NDArray[Any]:
        """Return a tile's array from its rectangle of the tensor, with zeros in the padding."""
        tile = self.weights[i, j]
        if piece.shape == tile.shape:
            return piece
        whole = np.zeros(tile.shape, piece.dtype)
        corner(whole, piece.shape)[...] = piece
        return whole

    def cut(self, array: NDArray[Any], i: int, j: int) -> NDArray[Any]:
        """Return the part of a tile's array that belongs to the tensor, without padding."""
        return corner(array, tuple(part.stop - part.start for part in self.index(i, j)))

    def tuned(self, trains: bool) -> Parameter:
        """Return the same tensor, trained or not, with the same weight tiles."""
        if trains == self.trains:
            return self
        other = copy(self)
        other.trains = trains
        other.exp_avg, other.exp_avg_sq = other._moments()
        return other

    @property
    def inputs(self) -> int:
        """How many parts the inputs of a layer with this weight have."""
        assert self.columns is not None, f"{self.name} is no weight of a layer"
        return len(self.columns if self.transposed else self.rows)

    def through(self, k: int, n: int) -> Key:
        """Return the key of the tile that leads from part k of a layer's inputs to part n of its outputs."""
        return (n, k) if self.transposed else (k, n)

    def label(self, i: int, j: int) -> str:
        """Return a tile's name for people: h.7.mlp.c_fc.weight[2,0], or h.7.ln_1.bias[2]."""
        where = f"[{i}]" if self.columns is None else f"[{i},{j}]"
        return self.title + where

    def owned(self, key: Key) -> Iterator[Tile]:
        """Yield the tiles of a key that only its update uses: moments, and the weight if operations read a copy of it."""
        for tiles in (self.weights if self.copies else {}, self.exp_avg, self.exp_avg_sq):
            if key in tiles:
                yield tiles[key]

    def _shape(self, i: int, j: int) -> tuple[int, ...]:
        return (self.rows.size(i),) if self.columns is None else (self.rows.size(i), self.columns.size(j))

    def _tiles(self, suffix: str = "", dtype: Any = FP32) -> dict[Key, Tile]:
        return {(i, j): Tile(self.label(i, j) + suffix, self._shape(i, j), dtype, persistent=True) for i, j in self.keys()}

    def _moments(self) -> tuple[dict[Key, Tile], dict[Key, Tile]]:
        exp_avg, exp_avg_sq = (self._tiles(f".{family}") if self.trains and not self.stored else {} for family in MOMENTS)
        return exp_avg, exp_avg_sq


class Parameters(Mapping[str, Parameter]):
    """All tensors of a model by Hugging Face name, in the order of a forward pass, then those of its adapters by PEFT's name.

    precision: of the engine. compute_dtype: the dtype that GEMMs and attention read and write
    (asynctile/program/precision.py). tuning: says which tensors are trained, and which layers have adapters. stored: the names
    of the matrices whose tiles are bf16 in every precision, as a file has them; names that the model lacks are ignored.
    ValueError as `LoRA.layers`.
    """

    def __init__(
        self, config: Config, tiling: Tiling, precision: str = "fp32", tuning: Tuning = WHOLE,
        stored: frozenset[str] = frozenset(),
    ) -> None:
        self.config = config
        self.tiling = tiling
        self.precision = precision
        self.stored = stored
        self.compute_dtype = compute_dtype(precision)
        self.tuning = tuning
        self._by_name: dict[str, Parameter] = {}
        self._by_title: dict[str, Parameter] = {}
        self._make(tuning.tensors(config))

    def tuned(self, tuning: Tuning) -> Parameters:
        """Return the tensors of the same model under a tuning that keeps its adapters, if it has any.

        Both share the tiles of weights, and the moments of tensors that are trained in both.
        """
        other = copy(self)
        other.tuning, other._by_name, other._by_title = tuning, {}, {}
        for name, parameter in self.items():
            other._take(parameter.tuned(tuning.trains(self.config, name)))
        other._make(tensor for tensor in tuning.tensors(self.config) if tensor.name not in self)
        return other

    def anew(self) -> Parameters:
        """Return the same tensors in tiles of their own, of the same shapes and dtypes."""
        return Parameters(self.config, self.tiling, self.precision, self.tuning, self.stored)

    def __getitem__(self, name: str) -> Parameter:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def lora(self) -> LoRA | None:
        """The adapters of the model; None if it has none."""
        return self.tuning.lora

    @property
    def head(self) -> Parameter:
        """The matrix (vocabulary, width) that the head multiplies with."""
        return self.titled(self.config.head_tensor)

    @property
    def has_tied_head(self) -> bool:
        """Whether the head multiplies with the embedding of tokens."""
        return self.head.name in {tensor.name for tensor in self.config.first_tensors()}

    def titled(self, title: str) -> Parameter:
        """Return a tensor by its name without the family's prefix, such as "wte.weight"."""
        return self._by_title[title]

    def found(self, title: str) -> Parameter | None:
        """Return a tensor by its name without the family's prefix; None if the model has no such tensor."""
        return self._by_title.get(title)

    def pair(self, layer: str) -> tuple[Parameter, Parameter | None]:
        """Return the weight and the bias of a layer, such as "h.0.mlp.c_fc"; None if it has no bias."""
        return self.titled(f"{layer}.weight"), self.found(f"{layer}.bias")

    def base(self) -> Iterator[Parameter]:
        """Yield the tensors of the model without its adapters."""
        return (parameter for parameter in self.values() if not parameter.adapts)

    def adapters(self) -> Iterator[Parameter]:
        """Yield the tensors of the adapters."""
        return (parameter for parameter in self.values() if parameter.adapts)

    def trained(self) -> Iterator[Parameter]:
        """Yield the tensors that are trained."""
        return (parameter for parameter in self.values() if parameter.trains)

    @property
    def states_nbytes(self) -> int:
        """Bytes of all weights and of the moments of trained tensors, without padding and bf16 copies."""

        def of_one(item: Parameter) -> int:
            return BF16.itemsize if item.stored else STATES_NBYTES if item.trains else WEIGHT_NBYTES

        return sum(prod(item.shape) * of_one(item) for item in self.values())

    def weights(self) -> Iterator[Tile]:
        """Yield every weight tile, and the bf16 copies if there are any."""
        for parameter in self._by_name.values():
            yield from parameter.weights.values()
            yield from parameter.copies.values()

    def computed(self) -> Iterator[Tile]:
        """Yield every tile that operations read to compute: the weights, or the copies of those that have some."""
        for parameter in self._by_name.values():
            yield from parameter.compute.values()

    def states(self) -> Iterator[Tile]:
        """Yield every persistent tile: weights, their bf16 copies if there are any, and both moments of trained tensors."""
        for parameter in self._by_name.values():
            for tiles in (parameter.weights, parameter.copies, parameter.exp_avg, parameter.exp_avg_sq):
                yield from tiles.values()

    def _make(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            cuts = [self._cut(axis) for axis in tensor.axes]
            stored = len(cuts) == 2 and tensor.name in self.stored
            copied = len(cuts) == 2 and self.compute_dtype != FP32 and not stored
            trains, title = self.tuning.trains(self.config, tensor.name), title_of(self.config, tensor.name)
            self._take(Parameter(tensor, *cuts, title=title, copied=copied, trains=trains, stored=stored))

    def _take(self, parameter: Parameter) -> None:
        self._by_name[parameter.name] = self._by_title[parameter.title] = parameter

    def _cut(self, axis: str) -> Split:
        """Return the cut of an axis: that of the model, or a single part for the rank of its adapters."""
        if axis == RANK and self.lora is not None:
            return Split((0, self.lora.rank))
        return self.tiling[axis]


def initial_piece(parameter: Parameter, index: tuple[slice, ...], seed: int) -> NDArray[np.float32]:
    """Return the values of a new tensor in the rectangle `index`, float32. They do not depend on how a tensor is cut.

    Each BLOCK x BLOCK block is drawn as a whole from its own sequence of a counter-based generator, keyed by seed and name. So
    any piece can be made alone, without the rest of the tensor.
    """
    shape = tuple(part.stop - part.start for part in index)
    if not parameter.std and not parameter.bound:
        return np.full(shape, parameter.mean, np.float32)
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{parameter.name}".encode(), digest_size=16).digest(), "little")
    rows, columns = index
    piece = np.empty(shape, np.float32)
    for i in range(rows.start // BLOCK, -(-rows.stop // BLOCK)):
        for j in range(columns.start // BLOCK, -(-columns.stop // BLOCK)):
            generator = np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, j, i], np.uint64)))
            block = _drawn(generator, parameter)
            to_rows, from_rows = _overlap(rows, i)
            to_columns, from_columns = _overlap(columns, j)
            piece[to_rows, to_columns] = block[from_rows, from_columns]
    piece *= np.float32(parameter.bound or parameter.std)
    piece += np.float32(parameter.mean)
    return piece


def _drawn(generator: np.random.Generator, parameter: Parameter) -> NDArray[np.float32]:
    """Return a block of values from -1 to 1, or of the standard normal distribution."""
    if not parameter.bound:
        return generator.standard_normal((BLOCK, BLOCK), np.float32)
    block = generator.random((BLOCK, BLOCK), np.float32)
    block *= np.float32(2.0)
    block -= np.float32(1.0)
    return block


def _overlap(part: slice, block: int) -> tuple[slice, slice]:
    """Return where a block and a part of an axis meet, counted from the part's start and from the block's."""
    begin = block * BLOCK
    start, stop = max(part.start, begin), min(part.stop, begin + BLOCK)
    return slice(start - part.start, stop - part.start), slice(start - begin, stop - begin)
