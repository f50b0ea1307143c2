"""When things would happen in a step by rough rates: what computes, one link up and one down, side by side. Pure arithmetic.

A plan of memory asks it two things: when the bytes of a place are free, so that what is brought in finds one for which it need
not wait; and how long a step would take. Nothing that a step computes depends on it, and no real clock is asked: the same
program, cap and pace make the same plan on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from asynctile.program.operation import READ, WRITE, Operation
from asynctile.schedule.uses import Use, Uses

#: Places of a tier that are told apart, each of as many bytes.
PARTS = 4096
#: Gaps of a link that are remembered, the last ones.
GAPS = 32
_most = np.maximum.reduce


class Pace(NamedTuple):
    """How fast a device and what is around it are, roughly: floating-point operations, bytes of its memory read or written,
    bytes over the link each way, and bytes that updates in RAM read or write, a second each; and seconds that an operation
    takes however small it is.
    """

    flops_per_s: float
    memory_per_s: float
    link_per_s: float
    updated_per_s: float
    operation_s: float

    def operation(self, flops: int, nbytes: int) -> float:
        """Seconds of an operation on the device that does so much and reads or writes so many bytes."""
        return max(flops / self.flops_per_s, nbytes / self.memory_per_s) + self.operation_s


#: A GPU like an H200 with tiles in bf16, and two cores over a link or a disk. What is made by them hardly depends on them.
GPU = Pace(flops_per_s=7e14, memory_per_s=4e12, link_per_s=5e10, updated_per_s=1.5e11, operation_s=3e-6)
CORES = Pace(flops_per_s=3e11, memory_per_s=2e10, link_per_s=5e8, updated_per_s=2e10, operation_s=1e-6)


def pace_of(device: str, link_rate: int | None) -> Pace:
    """That of the device called `device`, which need not be there. link_rate: to which its link is limited, if it is."""
    pace = GPU if device.partition(":")[0] == "cuda" else CORES
    return pace if link_rate is None else pace._replace(link_per_s=link_rate)


class Way:
    """One direction of a link, on which a copy takes the first gap after it is ready. busy_s: of all copies."""

    def __init__(self) -> None:
        self.busy_s = self._end = 0.0
        self._gaps: list[tuple[float, float]] = []

    def carry(self, ready: float, seconds: float) -> float:
        """When a copy is over."""
        self.busy_s += seconds
        for index, (begin, end) in enumerate(self._gaps):
            start = max(begin, ready)
            if start + seconds <= end:
                left = [gap for gap in ((begin, start), (start + seconds, end)) if gap[0] < gap[1]]
                self._gaps[index : index + 1] = left
                return start + seconds
        start = max(self._end, ready)
        if start > self._end:
            self._gaps = [*self._gaps[1 - GAPS :], (self._end, start)]
        self._end = start + seconds
        return self._end


class Clock:
    """Of one step of `uses` in a tier of `cap` bytes, from a moment at which nothing is under way.

    now: when everything computed so far is over; so, at the end, the seconds of a step.
    """

    def __init__(self, uses: Uses, cap: int, pace: Pace) -> None:
        self.now = 0.0
        self._pace = pace
        self._sizes = [tile.nbytes for tile in uses.tiles]
        self._up, self._down = Way(), Way()
        count = len(uses.tiles)
        #: by tile, when its bytes here are written, all that use it here is over, its bytes below are written
        self._written = [0.0] * count
        self._used = [0.0] * count
        self._below = [0.0] * count
        self._part = max(1, -(-cap // PARTS))
        self._free = np.zeros(PARTS + 1)
        self._seconds = [self._takes(uses, index) for index in range(len(uses))]

    def free_at(self, offset: int, nbytes: int) -> float:
        """When all that was at a place is over."""
        part = self._part
        return float(_most(self._free[offset // part : (offset + nbytes - 1) // part + 1]))

    def load(self, tile: int, offset: int) -> None:
        ready = max(self.free_at(offset, self._sizes[tile]), self._below[tile])
        self._written[tile] = self._used[tile] = self._up.carry(ready, self._sizes[tile] / self._pace.link_per_s)

    def allocate(self, tile: int, offset: int) -> None:
        self._written[tile] = self._used[tile] = self.free_at(offset, self._sizes[tile])

    def copy(self, tile: int, old: int, new: int) -> None:
        """Within the tier."""
        size = self._sizes[tile]
        ready = max(self.now, self._written[tile], self.free_at(new, size))
        self.now = ready + 2 * size / self._pace.memory_per_s
        self._set_free(old, size, max(self.now, self._used[tile]))
        self._written[tile] = self._used[tile] = self.now

    def write_back(self, tile: int) -> None:
        """It leaves and is newer here."""
        self._below[tile] = self._down.carry(self._written[tile], self._sizes[tile] / self._pace.link_per_s)
        self._used[tile] = max(self._used[tile], self._below[tile])

    def go(self, tile: int, offset: int) -> None:
        """Its place is somebody else's behind all that uses it."""
        self._set_free(offset, self._sizes[tile], self._used[tile])

    def perform(self, index: int, entry: tuple[Use, ...]) -> None:
        written, used, ready = self._written, self._used, self.now
        for use in entry:
            ready = max(ready, written[use.tile] if use.how == READ else used[use.tile])
        self.now = ready + self._seconds[index]
        for use in entry:
            used[use.tile] = max(used[use.tile], self.now)
            if use.how != READ:
                written[use.tile] = self.now

    def perform_below(self, index: int, entry: tuple[Use, ...]) -> None:
        """In RAM, beside all else."""
        ready = max((self._below[use.tile] for use in entry if use.how != WRITE), default=0.0)
        for use in entry:
            if use.how != READ:
                self._below[use.tile] = ready + self._seconds[index]

    def _set_free(self, offset: int, nbytes: int, at: float) -> None:
        part = self._part
        parts = self._free[offset // part : (offset + nbytes - 1) // part + 1]
        np.maximum(parts, at, out=parts)

    def _takes(self, uses: Uses, index: int) -> float:
        """Seconds of an entry by itself."""
        entry = uses.program.entries[index]
        nbytes = sum(tile.nbytes for tile in entry.tiles)
        if index in uses.on_host:
            return nbytes / self._pace.updated_per_s
        if not isinstance(entry, Operation):
            return 0.0
        return self._pace.operation(entry.flops, nbytes)
