"""Addresses in a tier: which bytes are taken, where a tile fits, and which tiles must move aside for it.

Compiled code over the tables of state.py; offsets and sizes are bytes. stays.py decides which tiles come and leave. Large tiles
(a quarter of the largest tile or more) go to the low end of a hole and small ones to the high end, so large holes form at one
end.
"""

from __future__ import annotations

from typing import Any

from asynctile.kernels.cpu.jit import inline, piece
from asynctile.schedule.clock import free_at
from asynctile.schedule.state import pair_at, tile_at

#: No place.
NOWHERE = -1


@piece()
def up_to(pairs: int, count: int, key: int) -> int:
    """Return how many of the first `count` pairs have a key of at most `key`. The pairs ascend by key."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if pair_at(pairs, middle).key <= key:
            low = middle + 1
        else:
            high = middle
    return low


@inline()
def _set(pair: Any, key: int, value: int) -> None:
    pair.key, pair.value = key, value


@piece()
def insert(pairs: int, count: int, place: int, key: int, value: int) -> None:
    for index in range(count, place, -1):
        _set(pair_at(pairs, index), pair_at(pairs, index - 1).key, pair_at(pairs, index - 1).value)
    _set(pair_at(pairs, place), key, value)


@piece()
def _remove(pairs: int, count: int, place: int) -> None:
    for index in range(place, count - 1):
        _set(pair_at(pairs, index), pair_at(pairs, index + 1).key, pair_at(pairs, index + 1).value)


@inline()
def stop_of(hole: Any) -> int:
    """Return the offset at which a hole ends."""
    return hole.key + hole.value


@piece()
def take(s: Any, tile: int, offset: int) -> None:
    """Place a tile at `offset`. If bytes there are taken, the plan is wrong: the fault is counted and nothing changes."""
    end, index = offset + tile_at(s, tile).size, up_to(s.holes_at, s.holes, offset) - 1
    hole = pair_at(s.holes_at, index)
    if index < 0 or end > stop_of(hole):
        s.faults += 1
        return
    before, behind = offset - hole.key, stop_of(hole) - end
    if before:
        hole.value = before
        if behind:
            insert(s.holes_at, s.holes, index + 1, end, behind)
            s.holes += 1
    elif behind:
        _set(hole, end, behind)
    else:
        _remove(s.holes_at, s.holes, index)
        s.holes -= 1
    insert(s.standing_at, s.standing, up_to(s.standing_at, s.standing, offset), offset, tile)
    s.standing += 1
    tile_at(s, tile).at = offset


@piece()
def give(s: Any, tile: int) -> int:
    """Remove a tile from its place; return the offset of that place."""
    offset, size = tile_at(s, tile).at, tile_at(s, tile).size
    tile_at(s, tile).at = NOWHERE
    _remove(s.standing_at, s.standing, up_to(s.standing_at, s.standing, offset) - 1)
    s.standing -= 1
    index = up_to(s.holes_at, s.holes, offset)
    before, behind = pair_at(s.holes_at, index - 1), pair_at(s.holes_at, index)
    joins_behind = index < s.holes and behind.key == offset + size
    if index > 0 and stop_of(before) == offset:
        before.value += size
        if joins_behind:
            before.value += behind.value
            _remove(s.holes_at, s.holes, index)
            s.holes -= 1
    elif joins_behind:
        _set(behind, offset, size + behind.value)
    else:
        insert(s.holes_at, s.holes, index, offset, size)
        s.holes += 1
    return offset


@inline()
def end_of(s: Any, place: int) -> int:
    """Return the offset at which the tile ends that is number `place` by offset."""
    one = pair_at(s.standing_at, place)
    return one.key + tile_at(s, one.value).size


@piece()
def first_within(s: Any, offset: int) -> int:
    """Return the number, by offset, of the tile that covers `offset` or, if there is none, of the next tile behind it."""
    first = up_to(s.standing_at, s.standing, offset)
    return first - 1 if first and end_of(s, first - 1) > offset else first


@piece()
def stop_within(s: Any, end: int) -> int:
    """Return the number, by offset, of the first tile that begins at `end` or behind it."""
    return up_to(s.standing_at, s.standing, end - 1)


@piece()
def room_for(s: Any, tile: int) -> int:
    """Return an offset for a tile, or NOWHERE if no hole takes it.

    Prefers the place that has been free for longest, then the smallest hole. What comes into a place waits for its last users:
    in a place freed just now, an operation would wait for the one before it though another core is idle, and a load would
    begin late.
    """
    size = tile_at(s, tile).size
    is_large = size >= s.large
    best, best_free, best_spare, best_end = NOWHERE, 0.0, 0, False
    for index in range(s.holes):
        begin, spare = pair_at(s.holes_at, index).key, pair_at(s.holes_at, index).value - size
        if spare < 0:
            continue
        for end in range(2):
            offset = begin + spare * end
            free, is_other_end = free_at(s, offset, size), (end == 0 or spare == 0) != is_large
            if best != NOWHERE:
                if free != best_free:
                    is_better = free < best_free
                elif spare != best_spare:
                    is_better = spare < best_spare
                elif is_other_end != best_end:
                    is_better = best_end
                else:
                    is_better = offset < best
                if not is_better:
                    continue
            best, best_free, best_spare, best_end = offset, free, spare, is_other_end
    return best


@piece()
def cleared(s: Any, offset: int, nbytes: int) -> int:
    """Return how many tiles move elsewhere to clear these bytes (see `find_places`); -1 if that is impossible."""
    for place in range(first_within(s, offset), stop_within(s, offset + nbytes)):
        if tile_at(s, pair_at(s.standing_at, place).value).placed == s.stamp:
            return -1
    return find_places(s, offset, nbytes)


@piece()
def find_places(s: Any, begin: int, nbytes: int) -> int:
    """Find new places for the tiles in `nbytes` from `begin` on; return their number, -1 if holes elsewhere cannot take them.

    Writes the new places to the table `moving`, the largest tile first. No new place overlaps an old one, so the tiles may move
    in any order.
    """
    count = 0
    for index in range(first_within(s, begin), stop_within(s, begin + nbytes)):
        tile, place = pair_at(s.standing_at, index).value, count
        while place and tile_at(s, pair_at(s.moving_at, place - 1).key).size < tile_at(s, tile).size:
            place -= 1
        insert(s.moving_at, count, place, tile, NOWHERE)
        count += 1
    if not count:
        return 0
    parts = _parts_outside(s, begin, begin + nbytes, tile_at(s, pair_at(s.moving_at, count - 1).key).size)
    for index in range(count):
        one = pair_at(s.moving_at, index)
        best = _smallest(s, parts, tile_at(s, one.key).size)
        if best == NOWHERE:
            return -1
        part = pair_at(s.parts_at, best)
        one.value = part.key
        _set(part, part.key + tile_at(s, one.key).size, part.value - tile_at(s, one.key).size)
    return count


@piece()
def _smallest(s: Any, parts: int, size: int) -> int:
    """Return the number of the smallest of the first `parts` parts that takes `size` bytes; NOWHERE if there is none."""
    best, least = NOWHERE, 0
    for place in range(parts):
        free = pair_at(s.parts_at, place).value
        if free >= size and (best == NOWHERE or free < least):
            best, least = place, free
    return best


@piece()
def _parts_outside(s: Any, begin: int, end: int, least: int) -> int:
    """Write the parts of holes outside these bytes that have at least `least` bytes, ascending; return their number."""
    count = 0
    for place in range(s.holes):
        hole = pair_at(s.holes_at, place)
        low, high = min(stop_of(hole), begin), max(hole.key, end)
        if low - hole.key >= least:
            _set(pair_at(s.parts_at, count), hole.key, low - hole.key)
            count += 1
        if stop_of(hole) - high >= least:
            _set(pair_at(s.parts_at, count), high, stop_of(hole) - high)
            count += 1
    return count
