"""A run without bytes: what a program would move under given caps, by the very decisions that a run makes.

It drives asynctile/pipeline.py over fresh tiles and counts; `layers/plan.py` reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asynctile.demand import measure
from asynctile.handle import Handle
from asynctile.operation import READ
from asynctile.pipeline import Pipeline
from asynctile.program import Fetch, Program
from asynctile.storage.arena import Arena, Demand
from asynctile.storage.residency import Ledger, Load, Move
from asynctile.storage.tile import NEVER


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one run in the steady state (the second of two), and the peak over both."""

    loaded_nbytes: int
    written_back_nbytes: int
    fetched_nbytes: int
    device_peak_nbytes: int


class Bottomless:
    """A tier below that always has room."""

    def take(self, nbytes: int, what: str) -> object:
        return self

    def give(self, block: object) -> None:
        pass


def simulate(program: Program, standing: Sequence[Handle], cap: int | None, prefetch: int) -> Traffic:
    """Traffic of `program` on a device with a link, an arena of `cap` bytes and a host tier without bound.

    standing: the persistent tiles, which must be fresh (they are moved about). BudgetError below the floor.
    """
    demand = measure([program], standing)
    arena = Arena(cap, divided=True)
    arena.cut(demand)
    ledger = Ledger(arena, Bottomless())
    pipeline = Pipeline(ledger, prefetch)
    for tile in standing:
        tile.backing = ledger.backing
        tile.valid_below = tile in program.first_uses  # what is overwritten first need not be there
    for _ in range(2):
        for tile in program.inputs.values():
            ledger.release(tile)
            tile.backing, tile.valid_below = ledger.backing, True  # the host fills them anew
        loaded, written = _walk(program, demand, pipeline)
    fetched = sum(entry.tile.nbytes for entry in program.entries if isinstance(entry, Fetch))
    return Traffic(loaded, written, fetched, ledger.peak_nbytes)


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
