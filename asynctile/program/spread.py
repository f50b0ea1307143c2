"""A program spread over several devices: the device of each entry, and how tiles pass between devices. Pure.

Who carries which entry is decided above (layers/carriers.py). A temporary tile that one device writes and another one reads is
handed over as soon as it is written. A persistent tile has a passage: it comes down to RAM, where it lives, and the others take
their own copies for older. When they need it again, they get it from RAM or from a device that has it (emission.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from asynctile.program.operation import HOST, READ, WRITE, Operation, device_named
from asynctile.program.program import Entry, Fetch, Handover, Mark, Passage, Program
from asynctile.storage.tile import Tile


class _Access(NamedTuple):
    """One use of a tile. device: where, or HOST. reads: its old bytes."""

    position: int
    device: str
    reads: bool
    writes: bool


#: The uses of each tile, in order, each entry once.
Accesses = dict[Tile, list[_Access]]


def spread(program: Program, devices: Sequence[int], order: Sequence[int] | None = None) -> Program:
    """Return the finished program with each entry on its device. devices: their numbers, by entry.

    Marks and work of the host have no device; their numbers are ignored. order: the positions of the entries in their new
    order; None: as they are.
    """
    order = range(len(program)) if order is None else order
    entries = [_on(program.entries[position], devices[position]) for position in order]
    accesses = _accesses(entries)
    passing, handed = _passing(accesses), _handed(accesses)
    found, places = Program(program.name), dict[int, int]()
    for position, entry in enumerate(entries):
        places[order[position]] = len(found)
        if isinstance(entry, Mark):
            found.mark(entry.name, program.rewritten[entry.name])
        else:
            found.add(entry)
        if position in passing:
            found.add(Passage(tuple(passing[position]), entry.device))
        for tile, device in handed.get(position, ()):
            found.add(Handover(tile, entry.device, device))
    found.numbers, found.inputs, found.temporaries = program.numbers, program.inputs, program.temporaries
    found.fetches = [entry for entry in entries if isinstance(entry, Fetch)]
    places[len(program)] = len(found)
    found.sections = sorted(((places[position], section) for position, section in program.sections), key=itemgetter(0))
    return found.finish()


def joined(program: Program) -> Program:
    """Return the finished program as one device would carry it out, in the same order. Nothing passes between devices."""
    if program.devices == 1:
        return program
    found = Program(program.name)
    for entry in program.entries:
        if isinstance(entry, Mark):
            found.mark(entry.name, program.rewritten[entry.name])
        elif not isinstance(entry, Passage | Handover):
            found.add(_on(entry, 0))
    found.numbers, found.inputs, found.temporaries = program.numbers, program.inputs, program.temporaries
    found.fetches = [entry for entry in found.entries if isinstance(entry, Fetch)]
    return found.finish()


def _on(entry: Entry, device: int) -> Entry:
    """Return an entry on its device."""
    if isinstance(entry, Operation | Fetch) and entry.device != HOST:
        return replace(entry, device=device_named(device))
    return entry


def _passing(accesses: Accesses) -> dict[int, list[Tile]]:
    """Return, by position, the persistent tiles that pass to RAM behind this entry, which writes them.

    They are all that other devices use, too: a run may begin with copies anywhere.
    """
    found: dict[int, list[Tile]] = defaultdict(list)
    for tile, uses in accesses.items():
        if tile.persistent and len({use.device for use in uses} - {HOST}) > 1:
            for use in uses:
                if use.writes and use.device != HOST:
                    found[use.position].append(tile)
    return found


def _handed(accesses: Accesses) -> dict[int, list[tuple[Tile, str]]]:
    """Return, by position, the temporary tiles that are handed over behind this entry, which writes them, each with its target.
    """
    found: dict[int, list[tuple[Tile, str]]] = defaultdict(list)
    for tile, uses in accesses.items():
        for number, use in enumerate(uses):
            if use.writes and use.device != HOST and not tile.persistent:
                readers = _readers(use.device, uses[number + 1 :])
                found[use.position] += ((tile, device) for device in readers)
    return found


def _readers(device: str, behind: Sequence[_Access]) -> dict[str, None]:
    """Return the other devices that read what `device` has written, before it is written again."""
    found: dict[str, None] = {}
    for access in behind:
        if access.reads and access.device not in (device, HOST):
            found[access.device] = None
        if access.writes:
            break
    return found


def _accesses(entries: Sequence[Entry]) -> Accesses:
    """Return the uses of each tile."""
    found: dict[Tile, list[_Access]] = defaultdict(list)
    for position, entry in enumerate(entries):
        hows: dict[Tile, str] = defaultdict(str)
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            hows[tile] += how
        for tile, all_ways in hows.items():
            reads, writes = set(all_ways) != {WRITE}, set(all_ways) != {READ}
            found[tile].append(_Access(position, entry.device, reads, writes))
    return found
