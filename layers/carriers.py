"""Who carries what in a program over several devices: rows by a table, weight tiles by their owners. Pure.

A device computes everything about the rows of its replicas, and adds up the partials of a gradient that lie on it alone. Two
sums on different devices are added on one of the two, the nearer to the owner of the weight tile (`nearest`). The owner updates
the tile and passes it on. So results depend on the number of replicas (partials.py) and never on the table.

A forward pass has no sums over rows. There the table gives groups of row tiles to devices, and no device needs another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from asynctile.layers.parameters import Parameters
from asynctile.layers.recording import Recording, RowTiles
from asynctile.program.lag import lagging
from asynctile.program.operation import HOST, READ
from asynctile.program.program import Entry, Mark, Program
from asynctile.program.spread import spread
from asynctile.program.weave import woven
from asynctile.storage.tile import Tile


def table(replicas: int, devices: int) -> tuple[int, ...]:
    """Return the device of each replica: neighbours together, and every device nearly equally many.

    ValueError if there are more devices than replicas.
    """
    if devices > replicas:
        raise ValueError(f"{devices} devices cannot share {replicas} replica{'s' * (replicas > 1)}; choose replicas of at "
                         "least the number of devices, a power of two that divides the batch")
    return tuple(replica * devices // replicas for replica in range(replicas))


def forward_table(groups: int, devices: int) -> tuple[int, ...]:
    """Return the device of each group of row tiles in a forward pass. Fewer groups than devices use fewer devices."""
    return table(groups, min(groups, devices))


def owners(parameters: Parameters, devices: int, nodes: int) -> dict[Tile, int]:
    """Return the owner of each weight tile: in their order, the device that owns the fewest bytes so far.

    devices: of all nodes. Of several such devices, the first; on several nodes, the first by the reversed bits of its number.
    So the tiles of a layer, whose sums are due at the same time, have owners on all nodes.
    """
    nbytes, found, turns = [0] * devices, {}, list(range(devices))
    if nodes > 1:
        turns.sort(key=lambda device: f"{device:0{(devices - 1).bit_length()}b}"[::-1])
    for parameter in parameters.values():
        for tile in parameter.weights.values():
            found[tile] = min(turns, key=nbytes.__getitem__)
            nbytes[found[tile]] += tile.nbytes
    return found


def homes_of(parameters: Parameters, nodes: int, devices: int) -> dict[Tile, int]:
    """Return the node of each tile that stands on one node alone, where its weight tile is updated; none if there is one node.

    These are moments, and master weights that have copies for compute, also those of frozen tensors. devices: of each node.
    """
    if nodes == 1:
        return {}
    owned = owners(parameters, nodes * devices, nodes)
    return {tile: owned[weight] // devices
            for item in parameters.values() for key, weight in item.weights.items() for tile in item.owned(key)}


def carried(recording: Recording, carriers: Sequence[int], begins: Sequence[int], nodes: int) -> Program:
    """Return the recorded program, finished, with each entry on its device, in an order in which devices wait little.

    carriers: the device of each replica, among those of all nodes. begins: where the parts of the step begin.
    """
    program, devices = recording.program, max(carriers) + 1
    if devices == 1:
        return program.finish()
    finder = _Finder(program, owners(recording.parameters, devices, nodes))
    finder.homes.update(_homes(recording, recording.rows.by_replica, carriers))
    found = finder.devices()
    parts = lagging(program, found, begins)
    return spread(program, found, [position for part in parts for position in woven(program, found, part)])


def carried_forward(recording: Recording, carriers: Sequence[int]) -> Program:
    """Return the recorded forward pass, finished, with each entry on its device. The order stays.

    carriers: the device of each group of row tiles.
    """
    program = recording.program
    if max(carriers) == 0:
        return program.finish()
    finder = _Finder(program, {})
    finder.homes.update(_homes(recording, recording.rows.groups, carriers))
    return spread(program, finder.devices())


def _homes(recording: Recording, parts: Iterable[RowTiles], carriers: Iterable[int]) -> Iterator[tuple[Tile, int]]:
    """Yield the inputs of the rows of each part, with its device."""
    for rows, device in zip(parts, carriers, strict=True):
        for row in rows:
            given = recording.tokens, recording.targets, recording.positions
            yield from ((tiles[row.index], device) for tiles in given if tiles)


class _Finder:
    """Finds the device of each entry of a program. owners: of weight tiles.

    homes: by tile, the device that has written it; of inputs, the device of their rows. A tile that was filled from constants
    or weights alone has its home where it first meets a tile with a home.
    """

    def __init__(self, program: Program, owners: Mapping[Tile, int]) -> None:
        self.homes: dict[Tile, int] = {}
        self._entries = program.entries
        self._owners = owners
        self._owners_of_gradients = _owners_of_gradients(program, owners)
        self._found = [0] * len(program)
        #: by tile, the numbers of the entries that have written it, while its home is not known
        self._filled: dict[Tile, list[int]] = {}

    def devices(self) -> list[int]:
        """Return the device of each entry."""
        for number, entry in enumerate(self._entries):
            if not isinstance(entry, Mark) and entry.device != HOST:
                self._find(number, entry)
        return self._found

    def _find(self, number: int, entry: Entry) -> None:
        written = [tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ]
        device = self._device(entry, written)
        if device is None:
            for tile in written:
                self._filled.setdefault(tile, []).append(number)
            return
        for tile in entry.tiles:
            if tile in self._filled:
                self.homes[tile] = device
                for earlier in self._filled.pop(tile):
                    self._found[earlier] = device
        self._found[number] = device
        self.homes.update((tile, device) for tile in written if not tile.persistent)

    def _device(self, entry: Entry, written: Sequence[Tile]) -> int | None:
        """Return the device of an entry; None if nothing says yet where the tile that it writes will be used."""
        for tile in written:
            if tile in self._owners:
                return self._owners[tile]
        there = {self.homes[tile] for tile in entry.tiles if tile in self.homes}
        if len(there) == 1:
            return there.pop()
        if there:
            return nearest(there, self._owners_of_gradients[entry.tiles[-1]])
        is_begun = any(tile in self._filled for tile in entry.tiles)
        return self._owners_of_gradients.get(entry.tiles[-1]) if is_begun else None


def nearest(devices: Iterable[int], owner: int) -> int:
    """Return the device on which partials that lie on `devices` are added up: the owner of the sum, or the nearest to it.

    The highest bit in which two numbers differ tells how far apart their devices are. So neighbours, and with them the devices
    of a node, add up their partials before one sum of them goes on. Each device has partials of its own, so the last sum is the
    owner's.
    """
    return min(devices, key=owner.__xor__)


def _owners_of_gradients(program: Program, owners: Mapping[Tile, int]) -> dict[Tile, int]:
    """Return the owner of each gradient and of its partials: that of the weight tile that they update or are fetched for."""
    found: dict[Tile, int] = {}
    for operation in reversed(list(program.operations())):
        if operation.kernel.startswith("adamw"):
            weight, gradient = operation.operands[:2]
            found[gradient] = owners[weight]
        elif operation.kernel == "add":
            source, target = operation.operands
            found[source] = found.setdefault(target, 0)
    return found
