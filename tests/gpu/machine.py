"""A machine that runs a verb on NumPy arrays through a GPU's device, and checks the memory around each tile.

The counterpart of tests/cuda/machine.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asynctile.device.cuda import CudaDevice
from asynctile.kernels.cuda import Array
from asynctile.program.operation import NO_NUMBER, UPDATE, Operation
from asynctile.storage.tile import Tile

#: Bytes before and after a tile that kernels must leave alone. As floats they are NaN, so that reading them shows too.
MARGIN = 256


class Poisoned:
    """A copy of an array on the GPU, surrounded by poison."""

    def __init__(self, device: CudaDevice, array: np.ndarray) -> None:
        self.array = array
        self._device = device
        self._room = np.full(array.nbytes + 2 * MARGIN, 0xFF, np.uint8)
        self._room[MARGIN : MARGIN + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        self._whole = Array(device.driver.malloc(self._room.nbytes), self._room.shape, self._room.dtype)
        self.place = Array(self._whole.ptr + MARGIN, array.shape, array.dtype)
        _landed(device.upload(self._whole, self._room, ()))

    def take_back(self) -> None:
        """Copy the tile's content back into the array."""
        _landed(self._device.download(self._room, self._whole, ()))
        inside, end = slice(MARGIN, MARGIN + self.array.nbytes), MARGIN + self.array.nbytes
        assert (self._room[:MARGIN] == 0xFF).all() and (self._room[end:] == 0xFF).all(), "a kernel wrote beyond a tile"
        self.array[...] = self._room[inside].view(self.array.dtype).reshape(self.array.shape)

    def free(self) -> None:
        self._device.driver.free(self._whole.ptr)


class HardMachine:
    """The kernels of a device that is started and warmed up."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def run(self, verb: str, arrays: Sequence[np.ndarray], params: Sequence[Any], number: np.ndarray | None = None) -> None:
        """Run a verb on arrays, which it may change. bf16 is uint16. number: float64 (1,) for the verb's report."""
        device = self._device
        handles = tuple(Tile(f"{verb}[{index}]", array.shape, array.dtype) for index, array in enumerate(arrays))
        reports = None if number is None else NO_NUMBER
        operation = Operation(verb, handles, UPDATE * len(arrays), tuple(params), number=reports)
        reported = None if number is None else device.numbers(1)
        if reported is not None:
            reported[:] = number
        tiles = [Poisoned(device, array) for array in arrays]
        try:
            _landed(device.launch(operation, [tile.place for tile in tiles], reported, ()))
            for tile in tiles:
                tile.take_back()
        finally:
            for tile in tiles:
                tile.free()
        if number is not None and reported is not None:
            number[:] = reported


def _landed(event: Any) -> None:
    event.wait()
    if event.error is not None:
        raise event.error
