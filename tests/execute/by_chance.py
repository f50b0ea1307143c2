"""A schedule run by NumPy, one entry after another, in a random order among those that its edges allow.

A missing edge therefore shows as wrong bits. Every byte that nothing has written yet is 0xff, which makes a NaN of a float. A
spill file is ordinary memory here.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from asynctile.program.operation import Operation
from asynctile.schedule.schedule import DISK, TOP, Kind, Place, Schedule
from asynctile.storage.residency import CLEAN, DIRTY, STORED
from asynctile.storage.tile import Tile


class ByChance:
    """The memory of one schedule, and its runs. cap: of its top tier, if that is packed."""

    def __init__(self, schedule: Schedule, kernels: Any, cap: int | None = None) -> None:
        self.schedule = schedule
        self.kernels = kernels
        self.memory = {place: np.full(place.nbytes, 0xFF, np.uint8) for place in schedule.places()}
        if cap is not None:
            whole = np.full(cap, 0xFF, np.uint8)
            packed = [place for place in self.memory if place.tier == TOP]
            self.memory |= {place: whole[place.index :][: place.nbytes] for place in packed}
        #: where in the file a tile has its place
        self.blocks = {entry.what: place for entry in schedule.entries for place in entry.places if place.tier == DISK}
        self.numbers = np.zeros(len(schedule.program.numbers) + 1)

    def fill(self, values: dict[Tile, np.ndarray]) -> None:
        """Put the bytes of every tile where they are when the step begins: the newest, and the same below a clean copy."""
        for tile, value in values.items():
            for place in self._copies(tile):
                self._array(place, tile)[...] = value

    def value(self, tile: Tile) -> np.ndarray:
        return self._array(self._newest(tile), tile).copy()

    def put(self, tile: Tile, value: np.ndarray) -> None:
        """Write an input where the host writes it."""
        places = [one.place for one in self.schedule.start if one.tile is tile and one.place is not None]
        self._array(places[-1] if places else self.blocks[tile], tile)[...] = value

    def put_at(self, mark: str, tile: Tile, value: np.ndarray) -> None:
        """Write an input at a mark."""
        places = [one.place for one in self.schedule.at[mark] if one.tile is tile and one.place is not None]
        self._array(places[-1], tile)[...] = value

    def run(self, seed: int, look: Callable[[str], None] = lambda mark: None) -> None:
        """Run the schedule once. look: called at each mark."""
        chance, entries = random.Random(seed), self.schedule.entries
        first = [*self.schedule.stretches, len(entries)]
        marks = {stretch: mark for mark, stretch in self.schedule.marks.items()}
        for stretch, (start, stop) in enumerate(pairwise(first)):
            if stretch in marks:
                look(marks[stretch])
            waiting, behind = {}, defaultdict(list)
            for index in range(start, stop):
                before = [other for other in (*entries[index].waits, *entries[index].after) if other >= start]
                waiting[index] = len(before)
                for other in before:
                    behind[other].append(index)
            ready = [index for index, count in waiting.items() if not count]
            while ready:
                index = ready.pop(chance.randrange(len(ready)))
                self._perform(index)
                for later in behind[index]:
                    waiting[later] -= 1
                    if not waiting[later]:
                        ready.append(later)
            assert not any(waiting.values())

    def _perform(self, index: int) -> None:
        entry = self.schedule.entries[index]
        if entry.kind is not Kind.OPERATION:
            target, source = (self.memory[place][: entry.nbytes] for place in entry.places)
            target[...] = source
            return
        operation = entry.what
        assert isinstance(operation, Operation)
        arrays = [self._array(place, tile) for place, tile in zip(entry.places, operation.operands, strict=True)]
        number = [] if operation.number is None else [self.numbers[operation.number :][:1]]
        self.kernels[operation.kernel](*arrays, *operation.params, *number)

    def _newest(self, tile: Tile) -> Place:
        return self._copies(tile)[0]

    def _copies(self, tile: Tile) -> list[Place]:
        """Return the places of a tile's newest bytes, from the top tier down."""
        stands = [one for one in self.schedule.start if one.tile is tile]
        copies: list[Place] = []
        for one in stands:
            if one.place is not None and one.state in (CLEAN, DIRTY):
                copies.append(one.place)
            if one.state is DIRTY:
                return copies
        assert stands[-1].state in (STORED, CLEAN), f"{tile} stands nowhere"
        place = self.blocks.setdefault(tile, Place(DISK, tile.nbytes, -1 - len(self.blocks)))
        self.memory.setdefault(place, np.full(place.nbytes, 0xFF, np.uint8))
        return [*copies, place]

    def _array(self, place: Place, tile: Any) -> np.ndarray:
        return self.memory[place][: tile.nbytes].view(tile.dtype).reshape(tile.shape)
