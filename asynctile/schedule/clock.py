"""A rough clock for plans: when compute, one link up and one link down, side by side, would be done. Pure arithmetic.

A plan of memory asks it when the bytes of a place are free, so that an incoming tile finds a place that it need not wait for,
and how long a step would take. Only moves depend on it, never a result, and no real clock is read: the same program, cap and
pace give the same plan on every machine.

Compiled code over the tables of state.py. Times are seconds from the beginning of a step, when nothing is in flight.
"""

from __future__ import annotations

from typing import Any

from asynctile.kernels.cpu.jit import inline, piece
from asynctile.kernels.cpu.records import record_at
from asynctile.schedule.state import GAP, GAPS, LAST_GAPS, SECONDS, WAY, entry_at, tile_at, use_at
from asynctile.schedule.uses import READS, WRITES

#: The two ways of a link.
UP, DOWN = 0, 1


@piece()
def free_at(s: Any, offset: int, nbytes: int) -> float:
    """Return when all earlier work on these bytes is done."""
    latest = 0.0
    for part in range(offset // s.part, (offset + nbytes - 1) // s.part + 1):
        latest = max(latest, record_at(s.free_at, part, SECONDS).at_s)
    return latest


@piece()
def _set_free(s: Any, offset: int, nbytes: int, at: float) -> None:
    for number in range(offset // s.part, (offset + nbytes - 1) // s.part + 1):
        part = record_at(s.free_at, number, SECONDS)
        part.at_s = max(part.at_s, at)


@inline()
def _gap(s: Any, way: int, place: int) -> Any:
    return record_at(s.gaps_at, way * GAPS + place, GAP)


@inline()
def _set_gap(gap: Any, begin_s: float, end_s: float) -> None:
    gap.begin_s, gap.end_s = begin_s, end_s


@piece()
def _drop_gap(s: Any, way: int, place: int) -> None:
    found = record_at(s.ways_at, way, WAY)
    found.gaps -= 1
    for later in range(place, found.gaps):
        _set_gap(_gap(s, way, later), _gap(s, way, later + 1).begin_s, _gap(s, way, later + 1).end_s)


@piece()
def _add_gap(s: Any, way: int, place: int, begin_s: float, end_s: float) -> None:
    found = record_at(s.ways_at, way, WAY)
    for later in range(found.gaps, place, -1):
        _set_gap(_gap(s, way, later), _gap(s, way, later - 1).begin_s, _gap(s, way, later - 1).end_s)
    _set_gap(_gap(s, way, place), begin_s, end_s)
    found.gaps += 1


@piece()
def _carry(s: Any, way: int, ready_s: float, nbytes: int) -> float:
    """Schedule a copy of `nbytes` in the first gap of a way after `ready_s`; return when it is done."""
    found, seconds = record_at(s.ways_at, way, WAY), nbytes / s.link_per_s
    for place in range(found.gaps):
        begin_s, end_s = _gap(s, way, place).begin_s, _gap(s, way, place).end_s
        start_s = max(begin_s, ready_s)
        if start_s + seconds <= end_s:
            _drop_gap(s, way, place)
            if start_s + seconds < end_s:
                _add_gap(s, way, place, start_s + seconds, end_s)
            if begin_s < start_s and found.gaps < GAPS:
                _add_gap(s, way, place, begin_s, start_s)
            return start_s + seconds
    start_s = max(found.end_s, ready_s)
    if start_s > found.end_s:
        while found.gaps >= LAST_GAPS:
            _drop_gap(s, way, 0)
        _add_gap(s, way, found.gaps, found.end_s, start_s)
    found.end_s = start_s + seconds
    return start_s + seconds


@inline()
def _set_there(tile: Any, at_s: float) -> None:
    tile.written_s, tile.used_s = at_s, at_s


@piece()
def load(s: Any, number: int, offset: int) -> None:
    tile = tile_at(s, number)
    _set_there(tile, _carry(s, UP, max(free_at(s, offset, tile.nbytes), tile.below_s), tile.nbytes))


@piece()
def allocate(s: Any, number: int, offset: int) -> None:
    tile = tile_at(s, number)
    _set_there(tile, free_at(s, offset, tile.nbytes))


@piece()
def copy(s: Any, number: int, old: int, new: int) -> None:
    """Account for a move of a tile within the tier, from offset `old` to offset `new`. Only the clock changes."""
    tile = tile_at(s, number)
    ready_s = max(max(s.time_s, tile.written_s), free_at(s, new, tile.nbytes))
    s.time_s = ready_s + 2 * tile.nbytes / s.memory_per_s
    _set_free(s, old, tile.nbytes, max(s.time_s, tile.used_s))
    _set_there(tile, s.time_s)


@piece()
def write_back(s: Any, number: int) -> None:
    """Write the bytes of a dirty tile that leaves to the tier below."""
    tile = tile_at(s, number)
    tile.below_s = _carry(s, DOWN, tile.written_s, tile.nbytes)
    tile.used_s = max(tile.used_s, tile.below_s)


@piece()
def go(s: Any, number: int, offset: int) -> None:
    """Free the bytes of a tile's place as soon as everything that uses the tile is done."""
    _set_free(s, offset, tile_at(s, number).nbytes, tile_at(s, number).used_s)


@piece()
def perform(s: Any, entry: int) -> None:
    """Run an operation on the tier: after the last writes of what it reads, and after all uses of what it writes."""
    first, last, time_s = entry_at(s, entry).at, entry_at(s, entry + 1).at, s.time_s
    for place in range(first, last):
        tile = tile_at(s, use_at(s, place).tile)
        time_s = max(time_s, tile.written_s if use_at(s, place).how == READS else tile.used_s)
    time_s += entry_at(s, entry).seconds
    for place in range(first, last):
        tile = tile_at(s, use_at(s, place).tile)
        tile.used_s = max(tile.used_s, time_s)
        if use_at(s, place).how != READS:
            tile.written_s = time_s
    s.time_s = time_s


@piece()
def perform_below(s: Any, entry: int) -> None:
    """Run an operation in RAM, beside everything else."""
    first, last, ready_s = entry_at(s, entry).at, entry_at(s, entry + 1).at, 0.0
    for place in range(first, last):
        if use_at(s, place).how != WRITES:
            ready_s = max(ready_s, tile_at(s, use_at(s, place).tile).below_s)
    for place in range(first, last):
        if use_at(s, place).how != READS:
            tile_at(s, use_at(s, place).tile).below_s = ready_s + entry_at(s, entry).seconds
