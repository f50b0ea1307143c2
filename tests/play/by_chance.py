"""A schedule run by NumPy, one entry after another, in an order drawn by chance among those that its edges allow.

So an edge that is missing shows as wrong bits. Every byte that nobody has written yet is 0xff, which makes a NaN of a float.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np

from asynctile.program.operation import Operation
from asynctile.schedule.schedule import Kind, Place, Schedule
from asynctile.storage.residency import CLEAN, DIRTY
from asynctile.storage.tile import Tile


class ByChance:
    """The memory of one schedule, and its runs."""

    def __init__(self, schedule: Schedule, kernels: Any) -> None:
        self.schedule = schedule
        self.kernels = kernels
        self.memory = {place: np.full(place.nbytes, 0xFF, np.uint8) for place in schedule.places()}
        self.numbers = np.zeros(len(schedule.program.numbers) + 1)

    def fill(self, values: dict[Tile, np.ndarray]) -> None:
        """Put the bytes of every tile where the newest of them are when the step begins."""
        for tile, value in values.items():
            self._array(self._newest(tile), tile)[...] = value

    def value(self, tile: Tile) -> np.ndarray:
        return self._array(self._newest(tile), tile).copy()

    def put(self, tile: Tile, value: np.ndarray) -> None:
        """An input, where the host writes it."""
        place = next(one.place for one in reversed(self.schedule.start) if one.tile is tile and one.place is not None)
        self._array(place, tile)[...] = value

    def run(self, seed: int) -> None:
        chance, entries = random.Random(seed), self.schedule.entries
        first = [*self.schedule.stretches, len(entries)]
        for start, stop in pairwise(first):
            left = {index: {*entries[index].waits, *entries[index].after} for index in range(start, stop)}
            for before in left.values():
                before.difference_update(range(start))
            while left:
                index = chance.choice([index for index, before in left.items() if not before])
                del left[index]
                self._perform(index)
                for before in left.values():
                    before.discard(index)

    def _perform(self, index: int) -> None:
        entry = self.schedule.entries[index]
        if entry.kind is not Kind.OPERATION:
            target, source = (self._array(place, entry.what) for place in entry.places)
            target[...] = source
            return
        operation = entry.what
        assert isinstance(operation, Operation)
        arrays = [self._array(place, tile) for place, tile in zip(entry.places, operation.operands, strict=True)]
        number = [] if operation.number is None else [self.numbers[operation.number :][:1]]
        self.kernels[operation.kernel](*arrays, *operation.params, *number)

    def _newest(self, tile: Tile) -> Place:
        stands = [one for one in self.schedule.start if one.tile is tile and one.place is not None]
        newest = [one.place for one in stands if one.state in (CLEAN, DIRTY)]
        assert newest, f"{tile} stands nowhere"
        return newest[0]  # from the top down

    def _array(self, place: Place, tile: Any) -> np.ndarray:
        return self.memory[place][: tile.nbytes].view(tile.dtype).reshape(tile.shape)
