"""The fewest bytes that a program must move through a cap: MIN, where tiles leave by the byte and stand anywhere.

Pure arithmetic over a program's next uses. Orders of a step are compared by it (layers/arrangement.py). No run moves exactly
that, since slots and addresses cost something; what one moves is measure/simulate.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from asynctile.program.operation import DEVICE, READ, WRITE
from asynctile.program.program import Program
from asynctile.storage.demand import align
from asynctile.storage.tile import NEVER, Tile

#: Counted behind one that begins with nothing. What is best for one run need not be for the next, so that they take turns.
RUNS = 2


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of a step in the steady state: into the memory under the cap, out of it, and of `loaded` those of each tile."""

    loaded_nbytes: int
    written_nbytes: int
    loaded: dict[Tile, int]


def fewest(program: Program, cap: int, alignment: int) -> Moved | None:
    """What a step of `program` moves at least through `cap` bytes of a memory that aligns tiles so; None if it does not fit.

    What is used furthest ahead leaves, as many bytes of it as are needed. What is overwritten before it is read, or dead, or
    used next by the host leaves before all else, and the first two for nothing.
    """
    memory = _Memory(program, cap, alignment)
    if not memory.run():
        return None
    memory.forget_moved()
    return memory.moved if all(memory.run() for _ in range(RUNS)) else None


class _Memory:
    """Bytes of each tile, by its number, under a cap, while a program runs again and again."""

    def __init__(self, program: Program, cap: int, alignment: int) -> None:
        self._cap = cap
        tiles = dict.fromkeys(tile for entry in program.entries for tile in entry.tiles)
        numbers = {tile: number for number, tile in enumerate(tiles)}
        self._tiles = list(tiles)
        self._sizes = [align(tile.nbytes, alignment) for tile in tiles]
        #: for each entry: whether the device runs it, and its operands: number, access, rank of the next use
        self._entries = [
            (entry.device == DEVICE, [numbers[tile] for tile in entry.tiles], entry.access, uses)
            for entry, uses in zip(program.entries, program.device_uses, strict=True)
        ]
        self._inputs = [numbers[tile] for tile in program.inputs.values() if tile in numbers]
        self._here = [0] * len(tiles)
        self._dirty = [0] * len(tiles)
        self._ranks = [NEVER] * len(tiles)
        self._used = 0
        self._base = 0
        #: (-rank, number), those that leave first in front; a tile that was used since is there with its older rank too
        self._leaving: list[tuple[int, int]] = []
        self.forget_moved()

    def forget_moved(self) -> None:
        """Count from now on."""
        self._loaded = [0] * len(self._tiles)
        self._written_nbytes = 0

    def run(self) -> bool:
        """One run; whether every entry fits."""
        for number in self._inputs:  # the host puts others
            self._drop(number)
        for on_device, numbers, access, uses in self._entries:
            if not on_device:
                self._run_on_host(numbers, access, uses)
            elif not self._bring(numbers, access):
                return False
            else:
                self._rank(numbers, access, uses)
        self._base += len(self._entries)
        return True

    @property
    def moved(self) -> Moved:
        """By one of RUNS runs, on average."""
        loaded = {self._tiles[number]: nbytes // RUNS for number, nbytes in enumerate(self._loaded) if nbytes}
        return Moved(sum(loaded.values()), self._written_nbytes // RUNS, loaded)

    def _bring(self, numbers: list[int], access: str) -> bool:
        """All operands of an entry to where it runs."""
        here, sizes = self._here, self._sizes
        for number, how in zip(numbers, access):  # noqa: B905  # lengths are checked when the operation is made
            missing = sizes[number] - here[number]
            if missing:
                self._used += missing
                here[number] = sizes[number]
                if how != WRITE:
                    self._loaded[number] += missing
        return self._used <= self._cap or self._make_room(numbers)

    def _make_room(self, staying: list[int]) -> bool:
        here, ranks, leaving = self._here, self._ranks, self._leaving
        while (excess := self._used - self._cap) > 0:
            if not leaving:
                return False
            rank, number = heappop(leaving)
            if -rank != ranks[number] or number in staying or not here[number]:
                continue  # those that stay get another rank at once
            amount = min(excess, here[number])
            here[number] -= amount
            self._used -= amount
            # The bytes that need not be written leave first.
            written = self._dirty[number] - here[number]
            if written > 0:
                self._written_nbytes += written
                self._dirty[number] = here[number]
            if here[number]:
                heappush(leaving, (rank, number))
        return True

    def _rank(self, numbers: list[int], access: str, uses: tuple[int, ...]) -> None:
        for number, how, use in zip(numbers, access, uses):  # noqa: B905
            if use >= NEVER:
                self._drop(number)
                continue
            if how != READ:
                self._dirty[number] = self._sizes[number]
            self._ranks[number] = rank = use + self._base
            heappush(self._leaving, (-rank, number))

    def _run_on_host(self, numbers: list[int], access: str, uses: tuple[int, ...]) -> None:
        """What the device has changed comes down first, and what the host changes is no longer there."""
        for number, how, use in zip(numbers, access, uses):  # noqa: B905
            if how != WRITE:
                self._written_nbytes += self._dirty[number]
                self._dirty[number] = 0
            if how == READ and self._here[number] and use < NEVER:
                self._ranks[number] = rank = use + self._base
                heappush(self._leaving, (-rank, number))
            else:
                self._drop(number)

    def _drop(self, number: int) -> None:
        self._used -= self._here[number]
        self._here[number] = self._dirty[number] = 0
