"""A tile: a named rectangle of one tensor, the unit that moves between tiers.

Covers identity and shape. storage/residency.py records where its bytes are in each tier.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The next use of a tile that nothing known reads again before it is overwritten.
NEVER = 1 << 62


class Tile:
    """One tile. Two tiles are equal only if they are the same object.

    name: for people and messages, such as ``h.7.mlp.c_fc.weight[2,0]``.
    shape, dtype: of the dense C-ordered array; nbytes follows from them.
    persistent: it outlives a step (weights, moments). Other tiles are dead after their last use in a program.
    at: its residency in each tier that has met it, by the tier's ledger.
    """

    __slots__ = ("name", "shape", "dtype", "nbytes", "persistent", "at")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32, *, persistent: bool = False) -> None:
        self.name = name
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.nbytes = math.prod(shape) * self.dtype.itemsize
        self.persistent = persistent
        self.at: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {'x'.join(map(str, self.shape))} {self.dtype}>"


def corner(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the part of the tile that belongs to the tensor, without padding: the first `shape` elements along each axis."""
    return array[tuple(map(slice, shape))]
