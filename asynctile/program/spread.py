"""A program spread over several devices: the device of each entry, and the passages that this makes necessary. Pure.

Who carries which entry is decided above (layers/carriers.py). Here a tile that one device writes and another one uses gets a
passage: it comes down to RAM as soon as it is written, and the others take their own copies for older.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from asynctile.program.operation import HOST, READ, Operation, device_named
from asynctile.program.program import Entry, Fetch, Mark, Passage, Program
from asynctile.storage.tile import Tile


class _Access(NamedTuple):
    """One use of a tile. device: where, or HOST."""

    position: int
    device: str
    writes: bool


def spread(program: Program, devices: Sequence[int], order: Sequence[int] | None = None) -> Program:
    """Return the finished program with each entry on its device. devices: their numbers, by entry.

    Marks and work of the host have no device; their numbers are ignored. order: the positions of the entries in their new
    order; None: as they are.
    """
    order = range(len(program)) if order is None else order
    entries = [_on(program.entries[position], devices[position]) for position in order]
    passing = _passing(program, entries)
    found, places = Program(program.name), dict[int, int]()
    for position, entry in enumerate(entries):
        places[order[position]] = len(found)
        if isinstance(entry, Mark):
            found.mark(entry.name, program.rewritten[entry.name])
        else:
            found.add(entry)
        if position in passing:
            found.add(Passage(tuple(passing[position]), entry.device))
    found.numbers, found.inputs, found.temporaries = program.numbers, program.inputs, program.temporaries
    found.fetches = [entry for entry in entries if isinstance(entry, Fetch)]
    places[len(program)] = len(found)
    found.sections = sorted(((places[position], section) for position, section in program.sections), key=itemgetter(0))
    return found.finish()


def _on(entry: Entry, device: int) -> Entry:
    """Return an entry on its device."""
    if isinstance(entry, Operation | Fetch) and entry.device != HOST:
        return replace(entry, device=device_named(device))
    return entry


def _passing(program: Program, entries: Sequence[Entry]) -> dict[int, list[Tile]]:
    """Return, by position, the tiles that pass to other devices behind this entry, which writes them."""
    found: dict[int, list[Tile]] = defaultdict(list)
    for tile, accesses in _accesses(entries).items():
        if len({access.device for access in accesses} - {HOST}) < 2:
            continue
        for number, access in enumerate(accesses):
            if access.writes and access.device != HOST:
                before, behind = accesses[:number], accesses[number + 1 :]
                if tile.persistent:  # the next run
                    behind = behind + before
                if _is_wanted(access.device, behind) or _is_held(tile, access.device, before, behind):
                    found[access.position].append(tile)
    return found


def _is_wanted(device: str, behind: Sequence[_Access]) -> bool:
    """Return whether the host or another device is the next to use what `device` has written, apart from its own reads."""
    return next((access.device != device for access in behind if access.device != device or access.writes), False)


def _is_held(tile: Tile, device: str, before: Sequence[_Access], behind: Sequence[_Access]) -> bool:
    """Return whether another device may have a copy of what `device` is about to change, and need it again.

    A run may begin with copies of a persistent tile anywhere.
    """
    again = {access.device for access in behind}
    for access in reversed(before):
        if access.device not in (device, HOST) and (tile.persistent or access.device in again):
            return True
        if access.writes:
            return False
    return tile.persistent


def _accesses(entries: Sequence[Entry]) -> dict[Tile, list[_Access]]:
    """Return the accesses of each tile, in order, each entry once."""
    found: dict[Tile, list[_Access]] = defaultdict(list)
    for position, entry in enumerate(entries):
        for tile, writes in _uses(entry):
            found[tile].append(_Access(position, entry.device, writes))
    return found


def _uses(entry: Entry) -> Iterator[tuple[Tile, bool]]:
    """Yield each tile of an entry once, with whether the entry writes it."""
    written = {tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ}
    return ((tile, tile in written) for tile in dict.fromkeys(entry.tiles))
