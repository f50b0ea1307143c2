"""The part of a program that one of several nodes carries out: its own entries, and the tiles that it sends and receives. Pure.

All nodes cut their parts out of one program over all their devices. So they agree, without a word, on which tile is the n-th
from one node to another, and in which order the tiles go. A temporary tile is sent as soon as it is written, if another node is
handed it. So is a persistent tile that another node uses, too. A tile that is fetched goes to all nodes, which fetch it, too.

The order of the whole program is an order in which all transfers can happen: each needs only entries before it. So nodes never
wait for each other in a circle, though nothing is buffered. Between two nodes temporary tiles go in this order, and so do
persistent ones. Neither waits for the other: a weight comes out of sums that other nodes send, and sums of the next weight need
not wait for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from operator import itemgetter

from asynctile.program.operation import HOST, NO_NUMBER, READ, WRITE, Operation, device_named, number_of
from asynctile.program.program import Entry, Fetch, Handover, Mark, Passage, Program, Shipment
from asynctile.storage.tile import Tile


def part_of(program: Program, node: int, devices: int) -> Program:
    """Return the part of `node` in a finished program over the devices of all nodes. devices: of each node.

    Each node carries some of the program, and has all its results. Node n has the devices n x devices and up, which its part
    counts from 0.
    """
    return parts_of(program, [node], devices)[0]


def parts_of(program: Program, nodes: Collection[int], devices: int) -> list[Program]:
    """Return the parts of `nodes`, cut in one pass, as `part_of` does."""
    return _Cutter(program, nodes, devices).parts()


def reporters(program: Program, devices: int) -> list[int]:
    """Return for each number of a program over the devices of all nodes which node reports it; 0 where none does."""
    found = [0] * len(program.numbers)
    for operation in program.operations():
        if operation.number not in (None, NO_NUMBER) and operation.device != HOST:
            found[operation.number] = number_of(operation.device) // devices
    return found


class _Cutter:
    """One pass through the whole program. found: the part of each node that is asked for. homes: the node of each entry.

    counts: of tiles so far, by (source, target, whether they are persistent).
    """

    def __init__(self, program: Program, nodes: Collection[int], devices: int) -> None:
        self.program = program
        self.devices = devices
        self.nodes = -(-program.devices // devices)
        self.found = {node: Program(program.name) for node in nodes}
        #: by the name of a device, its node and the name that it has there
        self.places = {name: self._place(name) for name in {entry.device for entry in program.entries} if name != HOST}
        self.homes = self._homes()
        self.users = self._users()
        self.counts = Counter[tuple[int, int, bool]]()
        #: the nodes that have the newest bytes of a temporary tile, besides the one that wrote it
        self.shipped: dict[Tile, set[int]] = {}
        #: persistent tiles that were just written, each with its node and one that uses it, too
        self.written: list[tuple[Tile, int, int]] = []

    def parts(self) -> list[Program]:
        whole, begins = self.program, {position for position, _ in self.program.sections}
        #: by the position of a section, where it begins in each part
        places: dict[int, list[int]] = {}
        for position, entry in enumerate(whole.entries):
            if position in begins:
                places[position] = list(map(len, self.found.values()))
            self._cut(position, entry)
            if self.written and (position + 1 == len(whole) or not isinstance(whole.entries[position + 1], Passage)):
                self._ship_written()  # behind the passage of the same tiles, which follows their change
        places[len(whole)] = list(map(len, self.found.values()))
        for number, part in enumerate(self.found.values()):
            self._complete(part, {position: there[number] for position, there in places.items()})
        return list(self.found.values())

    def _complete(self, found: Program, places: Mapping[int, int]) -> None:
        """Add all but the entries to a part. places: where the sections of the whole program begin in it."""
        whole, own = self.program, {tile for entry in found.entries for tile in entry.tiles}
        found.numbers = whole.numbers
        found.inputs = {name: tile for name, tile in whole.inputs.items() if tile in own}
        found.rewritten = {mark: tuple(tile for tile in tiles if tile in own) for mark, tiles in whole.rewritten.items()}
        found.temporaries = [tile for tile in whole.temporaries if tile in own]
        found.fetches = [entry for entry in found.entries if isinstance(entry, Fetch)]
        found.sections = sorted(((places[position], section) for position, section in whole.sections), key=itemgetter(0))
        found.finish()

    def _cut(self, position: int, entry: Entry) -> None:
        """Add what each node does about an entry of the whole program."""
        home = self.homes[position]
        if isinstance(entry, Mark):
            for part in self.found.values():
                part.mark(entry.name)
        elif isinstance(entry, Handover):
            self._hand_over(entry, home, self.places[entry.device][0])
        elif isinstance(entry, Passage):
            tiles = tuple(tile for tile in entry.tiles if len(self.users[tile].get(home, ())) > 1)
            if home in self.found and tiles:
                self.found[home].add(Passage(tiles, self.places[entry.device][1]))
        elif isinstance(entry, Fetch):
            for target in range(self.nodes):
                if target != home and not entry.tile.persistent:  # a persistent tile went there when it was written
                    self._send(entry.tile, home, target)
            own = self._own(entry)
            for part in self.found.values():
                part.add(own)
        else:
            if home in self.found:
                self.found[home].add(self._own(entry))
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if how != READ and tile.persistent:
                    self.written += ((tile, home, other) for other in sorted(self.users[tile].keys() - {home}))
                elif how != READ:
                    self.shipped.pop(tile, None)

    def _hand_over(self, entry: Handover, source: int, target: int) -> None:
        if source != target:
            self._send(entry.tile, source, target)
        elif source in self.found:
            own = replace(entry, source=self.places[entry.source][1], device=self.places[entry.device][1])
            self.found[source].add(own)

    def _send(self, tile: Tile, source: int, target: int) -> None:
        """Send the newest bytes of a temporary tile to a node, unless it has them: another of its devices was handed them."""
        if target not in (there := self.shipped.setdefault(tile, set())):
            there.add(target)
            self._ship(tile, source, target)

    def _ship_written(self) -> None:
        for tile, source, target in self.written:
            self._ship(tile, source, target)
        self.written.clear()

    def _ship(self, tile: Tile, source: int, target: int) -> None:
        index = self.counts[source, target, tile.persistent]
        self.counts[source, target, tile.persistent] += 1
        if source in self.found:
            self.found[source].add(Shipment(tile, target, index, READ))
        if target in self.found:
            self.found[target].add(Shipment(tile, source, index, WRITE))

    def _own(self, entry: Entry) -> Entry:
        """Return an entry with the name that its device has on its node."""
        if isinstance(entry, Operation | Fetch) and entry.device != HOST:
            name = self.places[entry.device][1]
            return entry if entry.device == name else replace(entry, device=name)
        return entry

    def _place(self, device: str) -> tuple[int, str]:
        node, number = divmod(number_of(device), self.devices)
        return node, device_named(number)

    def _homes(self) -> list[int]:
        """Return the node of each entry: of its device; for work of the host, the one that wrote its temporary tiles."""
        by_host = (entry for entry in self.program.entries if entry.device == HOST)
        at_host = {tile for entry in by_host for tile in entry.tiles if not tile.persistent}
        found, writers = [], dict[Tile, int]()
        for entry in self.program.entries:
            if isinstance(entry, Mark):
                home = 0
            elif isinstance(entry, Handover):
                home = self.places[entry.source][0]
            elif entry.device != HOST:
                home = self.places[entry.device][0]
            else:
                home = next((writers[tile] for tile in entry.tiles if tile in writers), 0)
            if at_host and not isinstance(entry, Handover | Passage):
                written = (tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ)
                writers.update((tile, home) for tile in written if tile in at_host)
            found.append(home)
        return found

    def _users(self) -> dict[Tile, dict[int, set[str]]]:
        """Return for each persistent tile the nodes that use it, each with its devices that do."""
        found: dict[Tile, dict[int, set[str]]] = defaultdict(dict)
        for entry, home in zip(self.program.entries, self.homes, strict=True):
            if isinstance(entry, Fetch) and entry.tile.persistent:
                for node in range(self.nodes):
                    number = node * self.devices + number_of(entry.device) % self.devices
                    found[entry.tile].setdefault(node, set()).add(device_named(number))
            elif not isinstance(entry, Handover | Passage):
                for tile in entry.tiles:
                    if tile.persistent:
                        found[tile].setdefault(home, set()).update({entry.device} - {HOST})
        return found
