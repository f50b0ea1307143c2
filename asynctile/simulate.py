"""A run without bytes: what a program would move under given caps, by the very decisions that a run makes.

It drives asynctile/pipeline.py over fresh tiles and counts. `layers/plan.py` reports it; the trainer asks it before the
first step whether the host tier will hold what gets evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from asynctile.demand import measure
from asynctile.handle import Handle
from asynctile.operation import READ
from asynctile.pipeline import Pipeline
from asynctile.program import Fetch, Program
from asynctile.storage.arena import Arena, Demand, align
from asynctile.storage.residency import Ledger, Load, Move
from asynctile.storage.tile import NEVER


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one run in the steady state (the second of two), and peaks over both."""

    loaded_nbytes: int
    written_back_nbytes: int
    fetched_nbytes: int
    device_peak_nbytes: int
    host_peak_nbytes: int


class CountingTier:
    """A tier below that only counts: peak_nbytes is what asynctile/storage/host.py must have, which reuses by size."""

    def __init__(self) -> None:
        self.peak_nbytes = 0
        self._free: Counter[int] = Counter()

    def take(self, nbytes: int, what: str) -> int:
        block = align(nbytes)
        if self._free[block]:
            self._free[block] -= 1
        else:
            self.peak_nbytes += block
        return block

    def give(self, block: int) -> None:
        self._free[block] += 1


def simulate(program: Program, standing: Sequence[Handle], cap: int | None, prefetch: int) -> Traffic:
    """Traffic of `program` on a device with a link, an arena of `cap` bytes and a host tier without bound.

    standing: the persistent tiles, which must be fresh (they are moved about). BudgetError below the floor.
    """
    demand = measure([program], standing)
    arena = Arena(cap, divided=True)
    arena.cut(demand)
    below = CountingTier()
    for tile in (*standing, *program.inputs.values()):
        tile.backing = below.take(tile.nbytes, tile.name)
        tile.valid_below = tile in program.first_uses  # what is overwritten first need not be there
    ledger = Ledger(arena, below)
    pipeline = Pipeline(ledger, prefetch)
    _walk(program, demand, pipeline)
    loaded, written = _walk(program, demand, pipeline)
    fetched = sum(entry.tile.nbytes for entry in program.entries if isinstance(entry, Fetch))
    return Traffic(loaded, written, fetched, ledger.peak_nbytes, below.peak_nbytes)


def _walk(program: Program, demand: Demand, pipeline: Pipeline) -> tuple[int, int]:
    """One run; bytes loaded and written back."""
    ledger = pipeline.ledger
    pipeline.begin(program, demand)
    moves: list[Move] = []
    loaded = written = 0
    for index, entry in enumerate(program.entries):
        pipeline.admit(entry.tiles, entry.access, moves)
        for tile, how, use in zip(entry.tiles, entry.access, program.next_uses[index], strict=True):
            ledger.used(tile, use if use == NEVER else pipeline.base + use, how != READ)
            if use == NEVER and not tile.persistent:
                ledger.release(tile)
        pipeline.look_ahead(index, moves)
        for move in moves:
            if isinstance(move, Load):
                loaded += move.tile.nbytes
            elif getattr(move, "write_back", False):
                written += move.tile.nbytes
        moves.clear()
    pipeline.end()
    return loaded, written
