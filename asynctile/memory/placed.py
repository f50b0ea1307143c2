"""A schedule on the arrays that it has now: what each entry works on."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.program.operation import Operation
from asynctile.schedule.schedule import Arrays, Place, Schedule, Scheduled
from asynctile.storage.tile import Tile


class Placed:
    """arrays: at the places of `schedule`. numbers: float64, where its kernels report, by the program's indices."""

    def __init__(self, schedule: Schedule, arrays: Arrays, numbers: np.ndarray) -> None:
        self.schedule = schedule
        self._arrays = arrays
        self._numbers = numbers
        self._operands: dict[int, tuple[Any, ...]] = {}

    @property
    def stretch_count(self) -> int:
        """Of its schedule."""
        return len(self.schedule.stretches)

    def operands(self, index: int) -> tuple[Any, ...]:
        """The arrays of an operation; of a move, where to and where from. Not of a transfer, which has blocks. Kept."""
        if index not in self._operands:
            self._operands[index] = self.operands_of(self.schedule.entries[index])
        return self._operands[index]

    def array(self, place: Place, tile: Tile) -> Any:
        """Of `tile`, which stands at `place`."""
        return self._arrays(place, tile.shape, tile.dtype)

    def operands_of(self, entry: Scheduled) -> tuple[Any, ...]:
        """The same, made anew."""
        tiles = entry.what.operands if isinstance(entry.what, Operation) else (entry.what, entry.what)
        return tuple([self.array(place, tile) for place, tile in zip(entry.places, tiles, strict=True)])

    def number(self, operation: Operation) -> np.ndarray | None:
        """Where an operation reports."""
        index = self.schedule.program.place_of(operation)
        return None if index is None else self._numbers[index : index + 1]
