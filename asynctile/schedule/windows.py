"""Windows: where room can be made in a tier for a tile that finds no hole. The cheapest windows are tried.

Compiled code over the tables of state.py. addresses.py finds the new places of the tiles that move out of a window.
"""

from __future__ import annotations

from typing import Any

from asynctile.kernels.cpu.jit import piece
from asynctile.schedule.addresses import NOWHERE, end_of, find_places, first_within, insert, stop_of, up_to
from asynctile.schedule.state import WINDOWS, pair_at, tile_at

#: The weight of a tile that moves out of a place to which it must return, relative to other tiles.
TWICE = 2


@piece()
def room_made_for(s: Any, tile: int) -> tuple[int, int]:
    """Return an offset for a tile once others move aside, and how many move; NOWHERE if none of the cheapest windows works.

    About the fewest bytes move; `find_places` writes down where to. Tiles that were placed for the present entry do not move:
    their `placed` is its stamp.
    """
    size = tile_at(s, tile).size
    _find_windows(s, size)
    for place in range(s.windows):
        offset = pair_at(s.windows_at, place).value
        count = find_places(s, offset, size)
        if count >= 0:
            return offset, count
    return NOWHERE, 0


@piece()
def _find_windows(s: Any, size: int) -> None:
    """Find the cheapest windows of `size` bytes, cheapest first."""
    s.windows = 0
    _measure_holes(s)
    for place in range(s.holes):
        hole = pair_at(s.holes_at, place)
        for start in (hole.key, stop_of(hole) - size):
            _try_window(s, start, size, first_within(s, start))
    for place in range(s.standing):
        _try_window(s, pair_at(s.standing_at, place).key, size, place)
        start, first = end_of(s, place) - size, place
        while first and end_of(s, first - 1) > start:
            first -= 1
        _try_window(s, start, size, first)


@piece()
def _measure_holes(s: Any) -> None:
    """Write to the table `parts`, for each hole, the largest hole before it and the largest from it on."""
    largest = 0
    for place in range(s.holes + 1):
        pair_at(s.parts_at, place).key = largest
        if place < s.holes:
            largest = max(largest, pair_at(s.holes_at, place).value)
    largest = 0
    for place in range(s.holes, -1, -1):
        if place < s.holes:
            largest = max(largest, pair_at(s.holes_at, place).value)
        pair_at(s.parts_at, place).value = largest


@piece()
def _try_window(s: Any, start: int, size: int, first: int) -> None:
    """Add the window at `start` to the cheapest ones, if all tiles in it can move.

    size: of the window, in bytes. first: number, by offset, of its first tile.
    """
    if start < 0 or start + size > s.cap:
        return
    cost, largest = _cost(s, start + size, first)
    place = s.windows
    while place:
        before = pair_at(s.windows_at, place - 1)
        if before.key < cost or (before.key == cost and before.value <= start):
            break
        place -= 1
    if cost >= 0 and place < WINDOWS and largest <= _largest_outside(s, start, start + size):
        s.windows = min(WINDOWS, s.windows + 1)
        insert(s.windows_at, s.windows - 1, place, cost, start)


@piece()
def _cost(s: Any, end: int, first: int) -> tuple[int, int]:
    """Return the cost of clearing a window, and its largest tile; a cost of -1 if its tiles cannot move.

    The cost is the bytes that move; tiles that must come back count TWICE.
    """
    moved, cost, largest, free = 0, 0, 0, s.cap - s.used
    for place in range(first, s.standing):
        one = pair_at(s.standing_at, place)
        if one.key >= end:
            break
        tile = tile_at(s, one.value)
        moved += tile.size
        if tile.placed == s.stamp or moved > free:
            return -1, 0
        largest = max(largest, tile.size)
        cost += tile.size * (TWICE if tile.home == tile.at else 1)
    return cost, largest


@piece()
def _largest_outside(s: Any, begin: int, end: int) -> int:
    """Return the most bytes that are free in one piece outside these bytes."""
    low = up_to(s.holes_at, s.holes, begin)  # the number of holes that begin before the window, or with it
    if low and stop_of(pair_at(s.holes_at, low - 1)) > begin:
        low -= 1
    high = up_to(s.holes_at, s.holes, end - 1)
    largest = max(pair_at(s.parts_at, low).key, pair_at(s.parts_at, high).value)
    if low < s.holes:
        largest = max(largest, begin - pair_at(s.holes_at, low).key)
    if high:
        largest = max(largest, stop_of(pair_at(s.holes_at, high - 1)) - end)
    return largest
