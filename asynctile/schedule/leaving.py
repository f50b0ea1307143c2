"""Which tile to evict next: a heap of the standing tiles, by when their bytes are needed again (Belady's MIN).

Entries become stale when their tile is ranked anew or is gone. When the heap is full, it is rebuilt without them.
"""

from __future__ import annotations

from typing import Any

from asynctile.kernels.cpu.jit import inline, piece
from asynctile.schedule.state import pair_at, tile_at
from asynctile.storage.tile import NEVER

NOBODY = -1


@inline()
def _ranked(s: Any, tile: int) -> int:
    """Return when a tile is needed again. A tile that need not stand at the end is not needed beyond the run."""
    found = tile_at(s, tile)
    return NEVER if s.keeps and found.again >= s.entries and not found.kept else found.again


@inline()
def _is_before(one: Any, other: Any) -> bool:
    return one.key > other.key or (one.key == other.key and one.value < other.value)


@inline()
def _set(place: Any, rank: int, tile: int) -> None:
    place.key, place.value = rank, tile


@piece()
def _push(s: Any, rank: int, tile: int) -> None:
    heap, place = s.leaving_at, s.leaving
    new = pair_at(heap, place)
    _set(new, rank, tile)
    s.leaving += 1
    while place > 0 and _is_before(new, pair_at(heap, (place - 1) >> 1)):
        above = pair_at(heap, (place - 1) >> 1)
        _set(new, above.key, above.value)
        _set(above, rank, tile)
        new, place = above, (place - 1) >> 1


@piece()
def _pop(s: Any) -> None:
    heap, size, place = s.leaving_at, s.leaving - 1, 0
    s.leaving = size
    moved = pair_at(heap, size)
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _is_before(pair_at(heap, below + 1), pair_at(heap, below)):
            below += 1
        first = pair_at(heap, below)
        if not _is_before(first, moved):
            break
        _set(pair_at(heap, place), first.key, first.value)
        place = below
    _set(pair_at(heap, place), moved.key, moved.value)


@piece()
def rank(s: Any, tile: int, again: int) -> None:
    """Record that a tile's bytes are needed next at position `again`."""
    tile_at(s, tile).again = again
    if not tile_at(s, tile).stands:
        return
    if s.leaving == s.leaving_room:
        s.leaving = 0
        for other in range(s.tiles):
            if tile_at(s, other).stands and other != tile:
                _push(s, _ranked(s, other), other)
    _push(s, _ranked(s, tile), tile)


@piece()
def victim(s: Any, beyond: int, stamp: int) -> int:
    """Return the tile that is needed furthest ahead, if that is behind position `beyond`, else NOBODY.

    Tiles whose `held` is `stamp`, those that the present entry uses, are never evicted.
    """
    first, found, aside = pair_at(s.leaving_at, 0), NOBODY, s.leaving_room
    while s.leaving > 0 and found == NOBODY:
        tile = tile_at(s, first.value)
        if not tile.stands or _ranked(s, first.value) != first.key:
            _pop(s)
        elif tile.held == stamp:
            _set(pair_at(s.leaving_at, aside), first.key, first.value)
            aside += 1
            _pop(s)
        elif first.key > beyond:
            found = first.value
        else:
            break
    for place in range(s.leaving_room, aside):
        _push(s, pair_at(s.leaving_at, place).key, pair_at(s.leaving_at, place).value)
    return found
