"""Descriptions and counts of the tensors of a model, whatever its family.

Tensors are listed lazily and counted by arithmetic, so looking at a model of any size costs nothing. A config.json only claims
a size. Whether the tensors exist is for a file or a budget to show. config.py defines the tensors, parameters.py their tiles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod

from asynctile.layers.config import WEIGHT_NBYTES, Config, lengths_of
from asynctile.program.precision import BF16


def shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every tensor."""
    sizes = lengths_of(config)
    return ((tensor.name, tuple(sizes[axis] for axis in tensor.axes)) for tensor in config.tensors())


def tensor_count(config: Config) -> int:
    """Return the number of tensors."""
    first, block, last = config.first_tensors(), config.block_tensors(0), config.last_tensors()
    return sum(1 for _ in first) + config.n_layer * sum(1 for _ in block) + sum(1 for _ in last)


def weights_nbytes(config: Config, stored: Collection[str] = ()) -> int:
    """Return the bytes of all weights: float32, or bf16 where the name of a tensor is among `stored`."""
    kept = sum(prod(shape) for name, shape in shapes(config) if name in stored) if stored else 0
    return WEIGHT_NBYTES * config.parameter_count - (WEIGHT_NBYTES - BF16.itemsize) * kept


def tile_count(config: Config, tile: int, pitch: int = 1) -> int:
    """Return an upper bound of the number of weight tiles of edge `tile` in a model. pitch: as in a grain."""
    return config.total({name: axis.count(tile, pitch) for name, axis in config.axes.items()})
