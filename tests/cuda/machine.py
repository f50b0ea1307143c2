"""Machines that run a verb on NumPy arrays, as on a device, and check the memory around each tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asynctile.kernels import cpu
from asynctile.kernels.cuda import KERNELS, Array
from tests.cuda.build import Library
from tests.cuda.context import SoftContext

#: Bytes before and after a tile that kernels must leave alone.
MARGIN = 256
#: Their content: about 0.75 as float32 or bf16. An addition changes it, and it shows in a result that used it.
AROUND = 0x3F


class Tile:
    """A copy of an array at an address that is a multiple of MARGIN, with more room on both sides."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        room = np.full(array.nbytes + 3 * MARGIN, AROUND, np.uint8)
        self._start = MARGIN + -room.ctypes.data % MARGIN
        self._room, self._end = room, self._start + array.nbytes
        room[self._start : self._end] = np.frombuffer(array.tobytes(), np.uint8)
        self.inside = room[self._start : self._end].view(array.dtype).reshape(array.shape)
        self.place = Array(self.inside.ctypes.data, array.shape, array.dtype)

    def take_back(self) -> None:
        """Copy the tile's content back into the array."""
        around = np.concatenate([self._room[: self._start], self._room[self._end :]])
        assert (around == AROUND).all(), "a kernel wrote beyond a tile"
        self.array[...] = self.inside


class SoftMachine:
    """The kernels of a library, on this CPU. options: of its SoftContext."""

    def __init__(self, library: Library, **options: Any) -> None:
        self._context = SoftContext(library, **options)

    def run(self, verb: str, arrays: Sequence[np.ndarray], params: Sequence[Any], number: np.ndarray | None = None) -> None:
        """Run a verb on arrays, which it may change. bf16 is uint16. number: float64 (1,) for the verb's report."""
        tiles = [Tile(array) for array in arrays]
        reported = [] if number is None else [Tile(number)]
        KERNELS[verb](self._context, *(tile.place for tile in tiles), *params, *(tile.place for tile in reported))
        for tile in tiles + reported:
            tile.take_back()


class CpuMachine:
    """The kernels of the CPU."""

    def run(self, verb: str, arrays: Sequence[np.ndarray], params: Sequence[Any], number: np.ndarray | None = None) -> None:
        tiles = [Tile(array) for array in arrays]
        cpu.KERNELS[verb](*(tile.inside for tile in tiles), *params, *(() if number is None else (number,)))
        for tile in tiles:
            tile.take_back()
