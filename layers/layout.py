"""Describing and counting the tensors of a model, whatever its family.

One after another, or by arithmetic, so that a model of any size costs nothing to look at: a config.json says a number, and
whether there are tensors for it is for a file or a budget to show. Which there are is config.py, their tiles are parameters.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from asynctile.layers.config import Config


def shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor."""
    sizes = {name: axis.times * axis.size for name, axis in config.axes.items()}
    return ((tensor.name, tuple(sizes[axis] for axis in tensor.axes)) for tensor in config.tensors())


def tensor_count(config: Config) -> int:
    """How many tensors there are."""
    first, block, last = config.first_tensors(), config.block_tensors(0), config.last_tensors()
    return sum(1 for _ in first) + config.n_layer * sum(1 for _ in block) + sum(1 for _ in last)


def tile_count(config: Config, tile: int, pitch: int = 1) -> int:
    """How many weight tiles of edge `tile` there are, at most. pitch: of a grain."""
    return config.total({name: axis.count(tile, pitch) for name, axis in config.axes.items()})
