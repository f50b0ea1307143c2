"""A tile: a named rectangle of one tensor, and where its bytes are at this moment.

Covers identity, shape and residency. Does not cover events and ordering (asynctile/program/handle.py) nor the choice
of what to evict (storage/residency.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: `next_use` of a tile that nothing known will read again before it is overwritten.
NEVER = 1 << 62


class Tile:
    """One tile. Two tiles are the same only if they are the same object.

    name: for people and error messages, such as ``h.7.mlp.c_fc.weight[2,0]``.
    shape, dtype: of the dense C-ordered array; nbytes follows.
    persistent: outlives a step (weights, moments). Others are dead after their last use in a program.
    slot: where it stands on the device (`storage.arena.Slot`), None while it is not there.
    backing: its place one tier below, None while it has none.
    valid_below: the backing holds bytes of this tile (older ones while `dirty`).
    dirty: the device copy is newer than the backing, or the only one.
    next_use: position in program order at which it is read or updated next; NEVER for none.
    """

    __slots__ = (
        "name", "shape", "dtype", "nbytes", "persistent", "slot", "backing", "valid_below", "dirty", "next_use",
    )  # fmt: skip

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32, *, persistent: bool = False) -> None:
        self.name = name
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self.persistent = persistent
        self.slot: Any = None
        self.backing: Any = None
        self.valid_below = False
        self.dirty = False
        self.next_use = NEVER

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {'x'.join(map(str, self.shape))} {self.dtype}>"
