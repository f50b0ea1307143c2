"""The view of a program that one device has: what it does, and what it sees.

A program for several devices is one order of all their entries. A device's view has its own operations, the marks, and
what happens elsewhere to tiles that it uses: the host or another device changes them, or the device brings them to RAM. Each
device's memory is planned from its view alone (asynctile/schedule). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from asynctile.program.operation import DEVICE, HOST, READ, WRITE, Operation, device_named
from asynctile.program.program import Elsewhere, Entry, Fetch, Handover, Mark, Passage, Program, Shipment
from asynctile.storage.tile import Tile


class View(NamedTuple):
    """The view of one device.

    positions: of its entries in the whole program, ascending. shared: the tiles that other devices use, too.
    """

    program: Program
    positions: Sequence[int]
    shared: frozenset[Tile] = frozenset()


def views_of(program: Program) -> tuple[View, ...]:
    """Return the view of each device of a finished program. The view of an only device is the program itself."""
    if program.devices == 1:
        return (View(program, range(len(program))),)
    names = [device_named(number) for number in range(program.devices)]
    own = {name: {tile: None for entry in program.entries if entry.device == name for tile in entry.tiles} for name in names}
    uses = Counter(tile for tiles in own.values() for tile in tiles)
    shared = frozenset(tile for tile, count in uses.items() if count > 1)
    writers = _writers(program)
    return tuple(_view(program, name, own[name], shared.intersection(own[name]), writers) for name in names)


#: By the position of an entry of the host: the device that has written each of its temporary tiles last; HOST if the host has.
Writers = dict[int, dict[Tile, str]]


def _writers(program: Program) -> Writers:
    found: Writers = {}
    last: dict[Tile, str] = {}
    for position, entry in enumerate(program.entries):
        if entry.device == HOST:
            found[position] = {tile: last.get(tile, HOST) for tile in entry.tiles if not tile.persistent}
        if isinstance(entry, Operation | Shipment):
            written = (tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ)
            last.update((tile, entry.device) for tile in written if not tile.persistent)
    return found


def _view(program: Program, device: str, own: Collection[Tile], shared: frozenset[Tile], writers: Writers) -> View:
    view, positions = Program(program.name), []
    for position, entry in enumerate(program.entries):
        if isinstance(entry, Mark):
            view.mark(entry.name, [tile for tile in program.rewritten[entry.name] if tile in own])
        elif (seen := _seen(entry, device, own, writers.get(position, {}))) is not None:
            view.add(seen)
        else:
            continue
        # The others lose their copies when the entry before a passage changes the tiles.
        positions.append(position - (isinstance(entry, Passage) and entry.device != device))
    view.inputs = {name: tile for name, tile in program.inputs.items() if tile in own}
    view.temporaries = [tile for tile in program.temporaries if tile in own]
    return View(view.finish(), positions, shared)


def _seen(entry: Entry, device: str, own: Collection[Tile], writers: Mapping[Tile, str]) -> Entry | None:
    """Return an entry as the device sees it; None if it does not concern the device.

    own: the tiles that the device uses. writers: for the host's entry, the devices that have its temporary tiles.
    """
    if isinstance(entry, Operation | Fetch) and entry.device == device:
        return replace(entry, device=DEVICE)
    if isinstance(entry, Handover):
        how = {entry.source: READ, entry.device: WRITE}.get(device)
        return None if how is None else replace(entry, device=DEVICE, access=how)
    if isinstance(entry, Passage):
        shared = [(tile, READ if entry.device == device else WRITE) for tile in entry.tiles if tile in own]
    elif entry.device == HOST:
        shared = []
        for tile, how in zip(entry.tiles, entry.access, strict=True):
            is_here = writers.get(tile, HOST) in (device, HOST)
            if tile in own and (is_here or how != READ):
                shared.append((tile, how if is_here else WRITE))
    else:
        return None
    return Elsewhere(tuple(tile for tile, _ in shared), "".join(how for _, how in shared)) if shared else None
