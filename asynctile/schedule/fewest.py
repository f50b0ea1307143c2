"""The fewest bytes that a program must move through a cap: Belady's MIN by bytes, where any part of a tile may be evicted.

Pure arithmetic over a program's next uses. layers/arrangement.py uses it to compare orders of a step. No run moves exactly so
little, because slots and addresses cost something; measure/simulate.py tells what a run really moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from asynctile.program.operation import DEVICE, READ, WRITE
from asynctile.program.program import Program
from asynctile.storage.demand import align
from asynctile.storage.tile import NEVER, Tile

#: Runs that are counted, after one that begins with an empty memory. Runs may alternate, because the best choice for one need
#: not be the best for the next.
RUNS = 2


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of a step in its steady state: loaded into the memory under the cap, written out of it, and `loaded` by tile."""

    loaded_nbytes: int
    written_nbytes: int
    loaded: dict[Tile, int]


def fewest(program: Program, cap: int, alignment: int) -> Moved | None:
    """Return the bytes that a step of `program` must move through a memory of `cap` bytes; None if the step does not fit.

    The tile that is needed furthest ahead is evicted first, and only as many of its bytes as are needed. Before it go tiles
    that are dead, that are overwritten before they are read (both for free), or that the host uses next. alignment: of
    tiles, in bytes.
    """
    memory = _Memory(program, cap, alignment)
    if not memory.run():
        return None
    memory.forget_moved()
    return memory.moved if all(memory.run() for _ in range(RUNS)) else None


class _Memory:
    """The bytes of each tile (by number) that stand under the cap, while a program runs again and again."""

    def __init__(self, program: Program, cap: int, alignment: int) -> None:
        self._cap = cap
        tiles = dict.fromkeys(tile for entry in program.entries for tile in entry.tiles)
        numbers = {tile: number for number, tile in enumerate(tiles)}
        self._tiles = list(tiles)
        self._sizes = [align(tile.nbytes, alignment) for tile in tiles]
        #: for each entry: whether the device runs it, and its operands' numbers, accesses and next uses
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
        #: a heap of (-rank, number), the first tile to evict in front; stale entries of tiles used since stay in it
        self._leaving: list[tuple[int, int]] = []
        self.forget_moved()

    def forget_moved(self) -> None:
        """Count moved bytes from now on."""
        self._loaded = [0] * len(self._tiles)
        self._written_nbytes = 0

    def run(self) -> bool:
        """Run the program once; return whether every entry fits."""
        for number in self._inputs:  # the host writes new ones
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
        """Bytes of one run, averaged over RUNS runs."""
        loaded = {self._tiles[number]: nbytes // RUNS for number, nbytes in enumerate(self._loaded) if nbytes}
        return Moved(sum(loaded.values()), self._written_nbytes // RUNS, loaded)

    def _bring(self, numbers: list[int], access: str) -> bool:
        """Bring all operands of an entry to where it runs; return False if they do not fit."""
        here, sizes = self._here, self._sizes
        for number, how in zip(numbers, access):  # noqa: B905  # the operation checks the lengths when it is made
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
                continue  # tiles that stay are ranked anew at once
            amount = min(excess, here[number])
            here[number] -= amount
            self._used -= amount
            # Clean bytes leave first.
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
        """Run an entry on the host: dirty bytes come down first, and tiles that the host changes leave the device."""
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
