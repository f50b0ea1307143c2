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
def room_for(s: Any, tile: int, loads: bool) -> int:
    """Return an offset for a tile, or NOWHERE if no hole takes it.

    Prefers the place that is free soonest, then the smallest hole. Among equal places a load takes the one that has been free
    for longest, and a result the one that compute has just used.
    """
    size = tile_at(s, tile).size
    is_large = size >= s.large
    best, best_wait, best_spare, best_end, best_rank = NOWHERE, 0.0, 0, False, 0.0
    for index in range(s.holes):
        begin, spare = pair_at(s.holes_at, index).key, pair_at(s.holes_at, index).value - size
        if spare < 0 or (best != NOWHERE and best_wait == 0.0 and spare > best_spare):
            continue
        for end in range(2):
            offset = begin + spare * end
            free = free_at(s, offset, size)
            wait, is_other_end, rank = max(0.0, free - s.time_s), (end == 0 or spare == 0) != is_large, free if loads else -free
            if best != NOWHERE:
                if wait != best_wait:
                    is_better = wait < best_wait
                elif spare != best_spare:
                    is_better = spare < best_spare
                elif is_other_end != best_end:
                    is_better = best_end
                elif rank != best_rank:
                    is_better = rank < best_rank
                else:
                    is_better = offset < best
                if not is_better:
                    continue
            best, best_wait, best_spare, best_end, best_rank = offset, wait, spare, is_other_end, rank
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
