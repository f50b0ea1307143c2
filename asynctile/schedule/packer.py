"""Where tiles stand in a tier as they come and go, and what moves: the places of a walk (stays.py).

A tile's home is the place where it stands when the run ends. If no hole takes a tile, other tiles are first moved within the
tier, because a copy there costs a small part of loading the bytes again. Only then are tiles evicted. Among the holes that
fit, the one that has been free for longest is taken (clock.py). A walk without places only counts free bytes.

Compiled code over the tables of state.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from asynctile.kernels.cpu.jit import piece
from asynctile.kernels.cpu.records import record_at
from asynctile.schedule import addresses, clock
from asynctile.schedule.addresses import NOWHERE
from asynctile.schedule.state import MOVE, pair_at, tile_at
from asynctile.schedule.windows import room_made_for


class Act(IntEnum):
    """An act of a tile.

    A tile leaves (written back if dirty), moves within the tier, is loaded, is written whole, or is written back and stays.
    """

    LEAVE = 0
    COPY = 1
    LOAD = 2
    BIRTH = 3
    SAVE = 4
    NOTHING = 5


_LEAVE, _COPY, _LOAD, _BIRTH, _SAVE, _NOTHING = (int(act) for act in Act)


@piece()
def _note(s: Any, act: int, tile: int, offset: int) -> None:
    """Record a move, or only count it if the table is full."""
    if s.moves < s.moves_room:
        move = record_at(s.moves_at, s.moves, MOVE)
        move.entry, move.act, move.tile, move.offset = s.entry, act, tile, offset
    s.moves += 1


@piece()
def forget(s: Any, number: int) -> None:
    """Remove a tile that may stand here, and its bytes with it."""
    tile = tile_at(s, number)
    if tile.stands:
        if s.has_places:
            clock.go(s, number, addresses.give(s, number))
        tile.stands, tile.dirty = False, False
        s.used -= tile.size


@piece()
def leave(s: Any, number: int) -> None:
    """Evict a tile; dirty bytes are written back."""
    tile = tile_at(s, number)
    if s.has_places:
        _note(s, _LEAVE, number, tile.at)
        if tile.dirty:
            clock.write_back(s, number)
    if tile.dirty:
        s.written += tile.size
    forget(s, number)


@piece()
def save(s: Any, number: int) -> None:
    """Write the bytes of a dirty tile back; the tile stays, and is clean."""
    tile = tile_at(s, number)
    if s.has_places:
        _note(s, _SAVE, number, tile.at)
        clock.write_back(s, number)
    s.written += tile.size
    tile.dirty = False


@piece()
def unborn(s: Any, number: int) -> None:
    """Forget a tile that the present entry was to write whole, and cancel the record of its place."""
    forget(s, number)
    for index in range(min(s.moves, s.moves_room) - 1, -1, -1):
        move = record_at(s.moves_at, index, MOVE)
        if move.tile == number and move.act == _BIRTH:
            move.act = _NOTHING
            break


@piece()
def _move(s: Any, number: int, offset: int) -> None:
    clock.copy(s, number, addresses.give(s, number), offset)
    addresses.take(s, number, offset)
    _note(s, _COPY, number, offset)
    s.copied += tile_at(s, number).size


@piece()
def stand(s: Any, number: int, offset: int, loads: bool) -> None:
    """Place a tile at `offset`; load its bytes unless an operation writes all of them. Without places, only count it."""
    tile = tile_at(s, number)
    if s.has_places:
        addresses.take(s, number, offset)
        if loads:
            clock.load(s, number, offset)
        else:
            clock.allocate(s, number, offset)
        _note(s, _LOAD if loads else _BIRTH, number, offset)
    tile.stands = True
    s.used += tile.size
    s.peak = max(s.peak, s.used)
    if loads:
        s.loaded += tile.size


@piece()
def _offset_for(s: Any, number: int) -> int:
    """Return an offset for a tile that is free now, moving others aside if needed; NOWHERE if there is none.

    A tile that comes for the last time in this run goes to its home, if that can be cleared.
    """
    tile, count = tile_at(s, number), -1
    offset = tile.home
    if offset != NOWHERE and s.entry >= tile.came:
        count = addresses.cleared(s, offset, tile.size)
    if count < 0:
        offset, count = addresses.room_for(s, number), 0
    if offset == NOWHERE:
        offset, count = room_made_for(s, number)
    for place in range(count):
        one = pair_at(s.moving_at, place)
        _move(s, one.key, one.value)
    return offset


@piece()
def enter(s: Any, number: int, loads: bool) -> bool:
    """Place a tile, if there is room for it; return whether there was."""
    offset = _offset_for(s, number) if s.has_places else NOWHERE
    if s.has_places and offset == NOWHERE:
        return False
    stand(s, number, offset, loads)
    return True


@piece()
def _settle(s: Any, number: int) -> bool:
    """Move or load a tile to its home; return whether this was done.

    Return False if bytes of any tile are there, even the tile's own: a tile cannot be copied over itself.
    """
    tile = tile_at(s, number)
    if addresses.first_within(s, tile.home) < addresses.stop_within(s, tile.home + tile.size):
        return False  # perhaps the tile itself, which cannot be copied over itself
    if tile.stands:
        _move(s, number, tile.home)
    else:
        stand(s, number, tile.home, True)
    return True


@piece()
def _step_aside(s: Any, number: int) -> None:
    """Move a tile out of the place that belongs to another tile; evict it if it has already stepped aside before."""
    tile, offset = tile_at(s, number), NOWHERE
    if tile.held != s.stamp:
        offset = addresses.room_for(s, number)
    tile.held = s.stamp
    if offset == NOWHERE:
        leave(s, number)
    else:
        _move(s, number, offset)


@piece()
def _settle_all(s: Any, count: int) -> int:
    """Settle (see `_settle`) those of the first `count` tiles in `homes` that are not at home; return how many could not.

    These are then the first ones in `homes`.
    """
    left = 0
    for place in range(count):
        tile = pair_at(s.homes_at, place).key
        if tile_at(s, tile).at != tile_at(s, tile).home and not _settle(s, tile):
            pair_at(s.homes_at, left).key = tile
            left += 1
    return left


@piece()
def bring_back(s: Any) -> None:
    """Move every tile to its home once the run is over, and evict the tiles without a home."""
    s.stamp += 1
    for number in range(s.tiles):
        tile = tile_at(s, number)
        if tile.stands and tile.home == NOWHERE:
            leave(s, number)
        elif tile.stands and tile.dirty and tile.clean:
            save(s, number)
    pending = s.homes
    while pending:
        left = _settle_all(s, pending)
        if left == pending:  # the tiles stand in each other's places
            place = 0
            while not tile_at(s, pair_at(s.homes_at, place).key).stands:
                place += 1
            _step_aside(s, pair_at(s.homes_at, place).key)
        pending = left
