"""The part of a program that one of several nodes carries out: its own entries, and the tiles that it sends and receives. Pure.

All nodes cut their parts out of one program over all their devices. So they agree, without a word, on which tile is the n-th
from one node to another, and in which order the tiles go. A temporary tile is sent as soon as it is written, if another node is
handed it. So is a persistent tile that another node uses, too.

The order of the whole program is an order in which all transfers can happen: each needs only entries before it. So nodes never
wait for each other in a circle, though nothing is buffered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from operator import itemgetter

from asynctile.program.operation import HOST, NO_NUMBER, READ, WRITE, Operation, device_named, number_of
from asynctile.program.program import Entry, Fetch, Handover, Mark, Passage, Program, Shipment
from asynctile.storage.tile import Tile


def part_of(program: Program, node: int, devices: int) -> Program:
    """Return the part of `node` in a finished program over the devices of all nodes. devices: of each node.

    Node n has the devices n x devices and up, which its part counts from 0.
    """
    return _Cutter(program, node, devices).part()


def reporters(program: Program, devices: int) -> list[int]:
    """Return for each number of a program over the devices of all nodes which node reports it; 0 where none does."""
    found = [0] * len(program.numbers)
    for operation in program.operations():
        if operation.number not in (None, NO_NUMBER) and operation.device != HOST:
            found[operation.number] = number_of(operation.device) // devices
    return found


class _Cutter:
    """One pass through the whole program. homes: the node of each entry. counts: of tiles so far, by (source, target)."""

    def __init__(self, program: Program, node: int, devices: int) -> None:
        self.program = program
        self.node = node
        self.devices = devices
        self.homes = self._homes()
        self.users = self._users()
        self.found = Program(program.name)
        self.counts = Counter[tuple[int, int]]()
        #: the nodes that have the newest bytes of a temporary tile, besides the one that wrote it
        self.shipped: set[tuple[Tile, int]] = set()
        #: persistent tiles that were just written, each with its node and one that uses it, too
        self.written: list[tuple[Tile, int, int]] = []

    def part(self) -> Program:
        whole, found, places = self.program, self.found, dict[int, int]()
        for position, entry in enumerate(whole.entries):
            places[position] = len(found)
            self._cut(position, entry)
            if position + 1 == len(whole) or not isinstance(whole.entries[position + 1], Passage):
                self._ship_written()  # behind the passage of the same tiles, which follows their change
        places[len(whole)] = len(found)
        own = {tile for entry in found.entries for tile in entry.tiles}
        found.numbers = whole.numbers
        found.inputs = {name: tile for name, tile in whole.inputs.items() if tile in own}
        found.rewritten = {mark: tuple(tile for tile in tiles if tile in own) for mark, tiles in whole.rewritten.items()}
        found.temporaries = [tile for tile in whole.temporaries if tile in own]
        found.fetches = [entry for entry in found.entries if isinstance(entry, Fetch)]
        found.sections = sorted(((places[position], section) for position, section in whole.sections), key=itemgetter(0))
        return found.finish()

    def _cut(self, position: int, entry: Entry) -> None:
        """Add what this node does about an entry of the whole program."""
        home = self.homes[position]
        if isinstance(entry, Mark):
            self.found.mark(entry.name)
        elif isinstance(entry, Handover):
            self._hand_over(entry, home, self._node_of(entry.device))
        elif isinstance(entry, Passage):
            tiles = tuple(tile for tile in entry.tiles if len(self.users[tile].get(home, ())) > 1)
            if home == self.node and tiles:
                self.found.add(Passage(tiles, self._named(entry.device)))
        else:
            if home == self.node:
                self.found.add(self._own(entry))
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if how != READ and tile.persistent:
                    self.written += ((tile, home, other) for other in sorted(self.users[tile].keys() - {home}))
                elif how != READ:
                    self.shipped -= {(tile, node) for node in self.users[tile]}

    def _hand_over(self, entry: Handover, source: int, target: int) -> None:
        if source != target:
            if (entry.tile, target) not in self.shipped:  # else another device of the node was handed it
                self.shipped.add((entry.tile, target))
                self._ship(entry.tile, source, target)
        elif source == self.node:
            self.found.add(replace(entry, source=self._named(entry.source), device=self._named(entry.device)))

    def _ship_written(self) -> None:
        for tile, source, target in self.written:
            self._ship(tile, source, target)
        self.written.clear()

    def _ship(self, tile: Tile, source: int, target: int) -> None:
        index = self.counts[source, target]
        self.counts[source, target] += 1
        if self.node == source:
            self.found.add(Shipment(tile, target, index, READ))
        elif self.node == target:
            self.found.add(Shipment(tile, source, index, WRITE))

    def _own(self, entry: Entry) -> Entry:
        """Return an own entry with the name that its device has on this node."""
        if isinstance(entry, Operation | Fetch) and entry.device != HOST:
            return replace(entry, device=self._named(entry.device))
        return entry

    def _named(self, device: str) -> str:
        return device_named(number_of(device) % self.devices)

    def _node_of(self, device: str) -> int:
        return number_of(device) // self.devices

    def _homes(self) -> list[int]:
        """Return the node of each entry: of its device; for work of the host, the one that wrote its temporary tiles."""
        found, writers = [], dict[Tile, int]()
        for entry in self.program.entries:
            if isinstance(entry, Mark):
                home = 0
            elif isinstance(entry, Handover):
                home = self._node_of(entry.source)
            elif entry.device != HOST:
                home = self._node_of(entry.device)
            else:
                home = next((writers[tile] for tile in entry.tiles if tile in writers), 0)
            if not isinstance(entry, Handover | Passage):
                written = (tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ)
                writers.update((tile, home) for tile in written if not tile.persistent)
            found.append(home)
        return found

    def _users(self) -> dict[Tile, dict[int, set[str]]]:
        """Return for each tile the nodes that use it, each with its devices that do."""
        found: dict[Tile, dict[int, set[str]]] = defaultdict(dict)
        for entry, home in zip(self.program.entries, self.homes, strict=True):
            if not isinstance(entry, Handover | Passage):
                for tile in entry.tiles:
                    found[tile].setdefault(home, set()).update({entry.device} - {HOST})
        return found
