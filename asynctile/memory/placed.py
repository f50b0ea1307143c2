"""A schedule on the arrays at its places: the operands of every entry."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.program.operation import Operation
from asynctile.schedule.schedule import Arrays, Place, Schedule, Scheduled
from asynctile.storage.tile import Tile


class Placed:
    """A schedule whose places have arrays. arrays: returns the array at a place.

    numbers: float64, where kernels report numbers, by the program's indices.
    """

    def __init__(self, schedule: Schedule, arrays: Arrays, numbers: np.ndarray) -> None:
        self.schedule = schedule
        self._arrays = arrays
        self._numbers = numbers
        self._operands: dict[int, tuple[Any, ...]] = {}

    @property
    def stretch_count(self) -> int:
        """Number of stretches of the schedule."""
        return len(self.schedule.stretches)

    def operands(self, index: int) -> tuple[Any, ...]:
        """Return the arrays of an operation, or target and source of a move. They are made once and kept.

        A transfer has no arrays but blocks (execute/transfers.py).
        """
        if index not in self._operands:
            self._operands[index] = self.operands_of(self.schedule.entries[index])
        return self._operands[index]

    def array(self, place: Place, tile: Tile) -> Any:
        """Return the array of `tile`, which stands at `place`."""
        return self._arrays(place, tile.shape, tile.dtype)

    def operands_of(self, entry: Scheduled) -> tuple[Any, ...]:
        """Return new arrays for the operands of an entry; see `operands`."""
        tiles = entry.what.operands if isinstance(entry.what, Operation) else (entry.what, entry.what)
        return tuple([self.array(place, tile) for place, tile in zip(entry.places, tiles, strict=True)])

    def number(self, operation: Operation) -> np.ndarray | None:
        """Return the view (1,) in which an operation reports its number; None if it has none."""
        index = self.schedule.program.place_of(operation)
        return None if index is None else self._numbers[index : index + 1]
