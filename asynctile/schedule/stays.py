"""A walk through a program: which tiles stand in a tier, and when.

A tile that needs room gets it from the tile whose bytes are needed furthest ahead (Belady's MIN), and tiles are loaded some
bytes before they are needed. The walk mirrors what a run does by itself: lanes release temporaries behind their last use, an
operation in RAM brings down what the device has changed, and the host's bytes replace those of the tier.

Compiled code over the tables of state.py; packer.py finds the places.
"""

from __future__ import annotations

from typing import Any

from numba import types

from asynctile.kernels.cpu.jit import inline, loop, piece
from asynctile.schedule import addresses, clock
from asynctile.schedule.leaving import NOBODY, rank, victim
from asynctile.schedule.packer import bring_back, enter, forget, leave, save, stand, unborn
from asynctile.schedule.state import BROUGHT, entry_at, pair_at, state_at, tile_at, use_at
from asynctile.schedule.uses import READS, WRITES

#: The most entries that the walk looks ahead. Without this bound it would look to the end at each entry, if nothing is missing.
HORIZON = 512
#: A position before all entries.
ANYWHEN = -1


@piece()
def _make_room(s: Any, size: int, beyond: int, held: int) -> bool:
    """Evict tiles for a tile of `size`; return False if no tile can be evicted.

    If there are enough free bytes, but not in one piece, at least a quarter of `size` is evicted.
    """
    enough, has_left = s.used - 1, False
    if s.used + size <= s.cap - s.slack:
        enough = s.used - max(1, size // 4)
    while s.used > enough:
        tile = victim(s, beyond, held)
        if tile == NOBODY:
            break
        leave(s, tile)
        has_left = True
    return has_left


@piece()
def _place(s: Any, number: int, beyond: int, held: int, loads: bool) -> bool:
    """Give a tile a place, evicting others if needed; return False if no more can be evicted and it still does not fit.

    beyond: tiles that are needed at or before this position stay. held: tiles with this stamp stay; each entry stamps its
    own tiles with a new number. loads: whether the tile's bytes are loaded, rather than written whole.
    """
    tile = tile_at(s, number)
    while s.used + tile.size > s.cap - s.slack or not enter(s, number, loads):
        if not _make_room(s, tile.size, beyond, held):
            if s.used + tile.size <= s.cap and enter(s, number, loads):
                break
            return False
    tile.since, tile.placed = s.entry, s.stamp
    return True


@piece()
def _cram(s: Any, entry: int) -> bool:
    """Evict all tiles and place the tiles of the entry side by side, because no hole took the last of them.

    Return False if they do not fit even so.
    """
    first, last, offset = entry_at(s, entry).at, entry_at(s, entry + 1).at, 0
    for place in range(first, last):
        tile = tile_at(s, use_at(s, place).tile)
        if tile.stands and tile.placed == s.stamp and use_at(s, place).how == WRITES:
            unborn(s, use_at(s, place).tile)
    for number in range(s.tiles):
        if tile_at(s, number).stands:
            leave(s, number)
    for place in range(first, last):
        use = use_at(s, place)
        tile = tile_at(s, use.tile)
        if offset + tile.size > s.cap:
            return False
        stand(s, use.tile, offset, use.how != WRITES)
        tile.since, tile.placed = s.entry, s.stamp
        offset += tile.size
    return True


@piece()
def _use(s: Any, entry: int) -> bool:
    """Place all tiles that an entry uses, and use them; return False if they do not fit at once."""
    first, last = entry_at(s, entry).at, entry_at(s, entry + 1).at
    s.stamp += 1
    for place in range(first, last):
        tile_at(s, use_at(s, place).tile).held = s.stamp
    for place in range(first, last):
        use = use_at(s, place)
        if not tile_at(s, use.tile).stands and not _place(s, use.tile, ANYWHEN, s.stamp, use.how != WRITES):
            if not s.has_places or not _cram(s, entry):
                return False
            break
    for place in range(first, last):
        use = use_at(s, place)
        if use.how != READS:
            tile_at(s, use.tile).dirty = True
        rank(s, use.tile, use.again)
    if s.has_places:
        clock.perform(s, entry)
    for place in range(first, last):
        if use_at(s, place).dies:
            forget(s, use_at(s, place).tile)
    return True


@piece()
def _use_below(s: Any, entry: int) -> None:
    """Use tiles in RAM: dirty tiles that the operation reads are written back, and tiles that it changes leave."""
    for place in range(entry_at(s, entry).at, entry_at(s, entry + 1).at):
        use = use_at(s, place)
        tile = tile_at(s, use.tile)
        if tile.stands and use.how != WRITES and tile.dirty:
            leave(s, use.tile)
        if use.how != READS or use.dies:
            forget(s, use.tile)
        rank(s, use.tile, use.again)
    if s.has_places:
        clock.perform_below(s, entry)


@piece()
def _bring(s: Any, entry: int) -> bool:
    """Load the tiles that an entry reads, evicting only tiles needed later; return False if one must wait for room.

    Tiles that will be written whole before they are read are not loaded.
    """
    s.stamp += 1
    for place in range(entry_at(s, entry).at, entry_at(s, entry + 1).at):
        use = use_at(s, place)
        tile = tile_at(s, use.tile)
        if use.how == WRITES:
            tile.overwritten = entry
        elif not tile.stands and tile.overwritten < 0:
            if s.brought and s.brought + tile.size > s.ahead:
                return False
            # No tile is held: any tile that is needed later than this entry may be evicted.
            if s.last - s.first == BROUGHT or not _place(s, use.tile, entry, NOBODY, True):
                return False
            rank(s, use.tile, entry)
            loaded = pair_at(s.brought_at, s.last % BROUGHT)
            loaded.key, loaded.value = entry, tile.size
            s.last += 1
            s.brought += tile.size
    return True


@inline()
def _is_rewriting(s: Any, entry: int) -> bool:
    """Return whether the host writes new bytes to some tile at this entry."""
    return entry_at(s, entry).rewritten < entry_at(s, entry + 1).rewritten


@piece()
def _look_ahead(s: Any) -> None:
    """Load the missing tiles of the next entries, unless a tile that is needed sooner would have to be evicted."""
    entry, stop = max(s.looked, s.entry), min(s.entries, s.entry + HORIZON)
    while entry < stop and s.brought < s.ahead and not _is_rewriting(s, entry):
        if entry_at(s, entry).on_host:
            for place in range(entry_at(s, entry).at, entry_at(s, entry + 1).at):
                if use_at(s, place).how != READS:
                    tile_at(s, use_at(s, place).tile).overwritten = entry
        elif not _bring(s, entry):
            break
        entry += 1
    s.looked = entry


@piece()
def _begin(s: Any) -> None:
    """Give the tiles that stand at the start their places and ranks."""
    for number in range(s.tiles):
        if tile_at(s, number).stands:
            if s.has_places:
                addresses.take(s, number, tile_at(s, number).at)
            s.used += tile_at(s, number).size
            rank(s, number, tile_at(s, number).again)
    s.peak = s.used


@piece()
def _arrive(s: Any, entry: int) -> None:
    """Arrive at an entry: the host may write new bytes to tiles, and loads for entries up to this one are no longer ahead."""
    s.entry = entry
    for place in range(entry_at(s, entry).rewritten, entry_at(s, entry + 1).rewritten):
        forget(s, use_at(s, place).tile)
    while s.first < s.last and pair_at(s.brought_at, s.first % BROUGHT).key <= entry:
        s.brought -= pair_at(s.brought_at, s.first % BROUGHT).value
        s.first += 1


@piece()
def _go_on(s: Any, entry: int) -> None:
    """Step behind an entry, and look ahead. A tile that must be clean in the end is written back behind its last use."""
    s.entry = entry + 1
    for place in range(entry_at(s, entry).at, entry_at(s, entry + 1).at):
        tile = tile_at(s, use_at(s, place).tile)
        if tile.overwritten == entry:
            tile.overwritten = -1
        if tile.clean and tile.stands and tile.dirty and tile.again >= s.entries:
            save(s, use_at(s, place).tile)
    if s.brought < s.ahead:
        _look_ahead(s)


@piece()
def _put_inputs(s: Any) -> bool:
    """Place the inputs that the host writes before a run. Without a link it writes them where they stand between two runs."""
    first, last = entry_at(s, s.entries).rewritten, entry_at(s, s.entries + 1).rewritten
    s.stamp += 1
    for place in range(first, last):
        tile_at(s, use_at(s, place).tile).held = s.stamp
    for place in range(first, last):
        tile = tile_at(s, use_at(s, place).tile)
        if not tile.stands and not _place(s, use_at(s, place).tile, ANYWHEN, s.stamp, False):
            return False
        tile.dirty = True
    return True


@loop((types.int64, types.boolean))
def walk(address: int, is_over: bool) -> bool:
    """Walk once through the program and, with places, to its end; return False if an entry does not fit.

    address: of the state. is_over: the program was walked through; now only place the inputs of the next run.
    """
    s = state_at(address)
    if is_over:
        return _put_inputs(s)
    _begin(s)
    for entry in range(s.entries):
        _arrive(s, entry)
        if entry_at(s, entry).on_host:
            _use_below(s, entry)
        elif not _use(s, entry):
            return False
        _go_on(s, entry)
    if s.has_places:
        bring_back(s)
    return True
