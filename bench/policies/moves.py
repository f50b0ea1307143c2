"""Moves of tiles between RAM and devices for an order of operations, as entries of a schedule.

Covers `Moves`: which copies of a tile are valid, what an operation must load, and what its loads, its bytes and its room wait
for. A policy chooses the order, the device of each operation and the tiles that leave. As in the product, a copy on another
device comes over the link between devices, and a tile that nothing uses again is dropped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from asynctile.program.operation import HOST, READ, WRITE, Operation, number_of
from asynctile.program.program import Fetch, Mark, Program
from asynctile.schedule.schedule import NOBODY, RAM, RESULT, Kind, Place, Schedule, Scheduled, tier_of
from asynctile.storage.tile import Tile
from policies.room import Room

#: The number of RAM beside those of devices.
IN_RAM = -1
#: What a policy orders.
Task = Operation | Fetch


@dataclass(slots=True)
class Copy:
    """A valid copy of a tile. made: the entry that wrote it. used: entries that have read it since."""

    made: int = NOBODY
    used: set[int] = field(default_factory=set)

    def over(self) -> set[int]:
        """Return the entries after which its bytes are free."""
        return self.used | {self.made} - {NOBODY}


@dataclass(frozen=True, slots=True)
class Stay:
    """The bytes of a tile in a device's memory: from the first entry that fills them to the last that uses them."""

    device: int
    tile: Tile
    first: int
    last: frozenset[int]


class Moves:
    """The tiles of `program` on devices with `rooms`, at first one for each device. RAM holds everything at first.

    recent: by room, the tiles there, the one used longest ago first. entries: made since `begin`. stays: of the tiles that have
    left since.
    """

    def __init__(self, program: Program, rooms: list[Room]) -> None:
        self.program = program
        self.rooms = rooms
        self.recent: list[OrderedDict[Tile, None]] = [OrderedDict() for _ in rooms]
        self.entries: list[Scheduled] = []
        self.stays: list[Stay] = []
        self.stretch = 0
        #: by task, its tiles and how it uses them
        self.how = {task: access_of(task) for _, task in tasks_of(program)}
        self._copies: dict[Tile, dict[int, Copy]] = {}
        #: the entries that used the copy in RAM which is no longer valid
        self._stale: dict[Tile, set[int]] = {}
        self._begun: dict[tuple[int, Tile], int] = {}
        self._left: dict[Tile, int] = {}
        self._versions: dict[Tile, deque[int]] = {}

    def begin(self) -> None:
        """Begin a step where the one before has ended. The host writes the inputs."""
        self.entries, self.stays, self.stretch = [], [], 0
        self._stale.clear()
        for copies in self._copies.values():
            for node in copies:
                copies[node] = Copy()
        for room in self.rooms:
            room.begin()
        self._begun = dict.fromkeys(self._begun, NOBODY)
        self._versions = _versions(self.how.values())
        self._left = {tile: counts.popleft() for tile, counts in self._versions.items()}
        for tile in self.program.standing:
            self._copies.setdefault(tile, {IN_RAM: Copy()})
        for tile in self.program.inputs.values():
            self.rewritten(tile)

    def rewritten(self, tile: Tile) -> None:
        """Note that the host has written a tile in RAM."""
        self._forget(tile)
        self._copies[tile] = {IN_RAM: Copy()}

    def room_of(self, tile: Tile, node: int) -> int:
        """Return the number of the room for a tile on a device."""
        return node

    def missing(self, tile: Tile, node: int) -> bool:
        """Return whether a tile is not valid at `node`."""
        return node not in self._copies.get(tile, ())

    def made(self, tile: Tile, node: int) -> int:
        """Return the entry that wrote the copy at `node`."""
        return self._copies[tile][node].made

    def valid_at(self, tile: Tile) -> Collection[int]:
        """Return where a tile is valid: devices, and IN_RAM."""
        return self._copies.get(tile, {}).keys()

    def run(self, task: Task, node: int) -> int:
        """Add an operation on device `node` or in RAM, with its loads; return its number.

        Room is made by evicting the tiles that were used longest ago.
        """
        how = self.how[task]
        waits, after = set[int](), set[int]()
        if node != IN_RAM:
            needed = Counter[int]()
            for tile in how:
                if self.missing(tile, node):
                    needed[self.room_of(tile, node)] += tile.nbytes
            for room, nbytes in needed.items():
                self.make_room(room, node, nbytes, how)
        for tile, letters in how.items():
            if letters != WRITE and self.missing(tile, node):
                self.load(tile, node)
        for tile, letters in how.items():
            if letters == WRITE and self.missing(tile, node):
                after |= self._taken(tile, node)
            else:
                waits.add(self._copies[tile][node].made)
        for tile, letters in how.items():
            if letters != READ:
                after |= self._alone(tile, node)
        number = self._add(task, how, node, waits, after)
        for tile, letters in how.items():
            self._use(tile, letters, node, number)
        return number

    def load(self, tile: Tile, node: int) -> int:
        """Bring a tile to device `node`, which has room, or to RAM; return the number of the entry."""
        copies = self._copies[tile]
        source = next((other for other in copies if other != IN_RAM), IN_RAM)
        if node == IN_RAM:
            return self._write_back(tile, source)
        after = self._taken(tile, node)
        kind = Kind.UPLOAD if source == IN_RAM else Kind.PASS
        number = self._move(kind, tile, node, source, after)
        self._begun[node, tile] = number
        return number

    def make_room(self, number: int, node: int, nbytes: int, held: Collection[Tile]) -> None:
        """Evict the tiles used longest ago from a room until `nbytes` are free, except the held ones.

        ValueError if that is not enough.
        """
        room, leaving = self.rooms[number], list[Tile]()
        lacking = nbytes - room.free
        if lacking <= 0:
            return
        for tile in self.recent[number]:
            if tile not in held:
                leaving.append(tile)
                lacking -= tile.nbytes
                if lacking <= 0:
                    break
        else:
            raise ValueError(f"no room for {nbytes} bytes: {room.free} of {room.cap} are free, and too few can leave")
        for tile in leaving:
            self.evict(tile, node)

    def evict(self, tile: Tile, node: int) -> None:
        """Take a tile away from a device; write it back if no other copy is valid."""
        if len(self._copies[tile]) == 1:
            self._write_back(tile, node)
        self._drop(tile, node)

    def mark(self, mark: Mark) -> None:
        """Begin the next stretch; the host rewrites the inputs that the program says."""
        self.stretch += 1
        for tile in self.program.rewritten[mark.name]:
            self.rewritten(tile)

    def schedule(self) -> Schedule:
        """Return the entries since `begin` as a schedule for the virtual clock."""
        self.stays += [self._stay(tile, node) for node, tile in self._begun]
        marks = {name: number + 1 for number, name in enumerate(self.program.marks)}
        return Schedule(program=self.program, entries=tuple(self.entries), stretches=(), marks=marks, start=(), at={}, end=(),
                        seams=(), peaks=tuple(room.peak for room in self.rooms), repeats=False)  # fmt: skip

    def _taken(self, tile: Tile, node: int) -> set[int]:
        """Take room for a tile; return the entries that must be over first."""
        if node == IN_RAM:
            return self._stale.pop(tile, set())
        room = self.room_of(tile, node)
        self.recent[room][tile] = None
        return self.rooms[room].take(tile.nbytes)

    def _alone(self, tile: Tile, node: int) -> set[int]:
        """Drop all copies but the one at `node`; return the entries that must be over before it is overwritten."""
        for other in [other for other in self._copies.get(tile, ()) if other != node]:
            self._drop(tile, other)
        copy = self._copies.get(tile, {}).get(node)
        return copy.over() if copy else set()

    def _use(self, tile: Tile, letters: str, node: int, number: int) -> None:
        if letters == READ:
            self._copies[tile][node].used.add(number)
        else:
            if not self._left[tile]:  # a version that nothing uses again is overwritten
                self._left[tile] = self._versions[tile].popleft()
            self._copies[tile] = {node: Copy(made=number)}
        if node != IN_RAM:
            self._begun.setdefault((node, tile), number)
            self.recent[self.room_of(tile, node)].move_to_end(tile)
        self._left[tile] -= 1
        if not self._left[tile] and not tile.persistent:
            self._forget(tile)

    def _forget(self, tile: Tile) -> None:
        for node in list(self._copies.get(tile, ())):
            self._drop(tile, node)
        self._copies.pop(tile, None)

    def _drop(self, tile: Tile, node: int) -> None:
        if node == IN_RAM:
            self._stale.setdefault(tile, set()).update(self._copies[tile].pop(node).over())
            return
        self.stays.append(self._stay(tile, node))
        over, room = self._copies[tile].pop(node).over(), self.room_of(tile, node)
        del self._begun[node, tile], self.recent[room][tile]
        self.rooms[room].give(tile.nbytes, over)

    def _stay(self, tile: Tile, node: int) -> Stay:
        return Stay(node, tile, self._begun[node, tile], frozenset(self._copies[tile][node].over()))

    def _write_back(self, tile: Tile, node: int) -> int:
        return self._move(Kind.DOWNLOAD, tile, IN_RAM, node, self._stale.pop(tile, set()))

    def _move(self, kind: Kind, tile: Tile, node: int, source: int, after: set[int]) -> int:
        copy, number = self._copies[tile][source], len(self.entries)
        places = (_place(tile, node), _place(tile, source))
        waits = () if copy.made == NOBODY else (copy.made,)
        self.entries.append(Scheduled(kind, tile, places, waits, tuple(after), self.stretch))
        copy.used.add(number)
        self._copies[tile][node] = Copy(made=number)
        return number

    def _add(self, task: Task, how: Iterable[Tile], node: int, waits: set[int], after: set[int]) -> int:
        waits = waits - {NOBODY}
        places = tuple(_place(tile, node) for tile in how)
        self.entries.append(entry_of(task, places, waits, after, self.stretch))
        return len(self.entries) - 1


def access_of(task: Task) -> dict[Tile, str]:
    """Return the tiles of a task: READ if it only reads one, WRITE if it only overwrites it, else both letters."""
    how: dict[Tile, set[str]] = {}
    for tile, letter in zip(task.tiles, task.access, strict=True):
        how.setdefault(tile, set()).add(letter)
    return {tile: next(iter(letters)) if len(letters) == 1 else "".join(sorted(letters)) for tile, letters in how.items()}


def node_of(task: Task) -> int:
    """Return the device of a task, or IN_RAM."""
    return IN_RAM if task.device == HOST else number_of(task.device)


def tasks_of(program: Program) -> Iterator[tuple[int, Task]]:
    """Yield the operations and fetches of a program with their positions."""
    return ((position, entry) for position, entry in enumerate(program.entries) if isinstance(entry, Operation | Fetch))


def moved(schedule: Schedule) -> Counter[Kind]:
    """Return the bytes that a schedule moves, by the kind of move."""
    found = Counter[Kind]()
    for entry in schedule.entries:
        found[entry.kind] += entry.nbytes
    return found


def _versions(used: Iterable[dict[Tile, str]]) -> dict[Tile, deque[int]]:
    """Return how many tasks use each version of each tile; a task that overwrites a tile begins a version."""
    found: dict[Tile, deque[int]] = {}
    for how in used:
        for tile, letters in how.items():
            counts = found.setdefault(tile, deque([0]))
            if letters == WRITE and counts[-1]:
                counts.append(0)
            counts[-1] += 1
    return found


def entry_of(
    task: Task, places: tuple[Place, ...] = (), waits: Collection[int] = (), after: Collection[int] = (), stretch: int = 0
) -> Scheduled:
    """Return the entry of a task, with what it waits for."""
    if isinstance(task, Fetch):
        result = Place(RESULT, task.tile.nbytes, 0)
        return Scheduled(Kind.FETCH, task.tile, (result, *places), tuple(waits), tuple(after), stretch)
    return Scheduled(Kind.OPERATION, task, places, tuple(waits), tuple(after), stretch)


def _place(tile: Tile, node: int) -> Place:
    return Place(RAM if node == IN_RAM else tier_of(node), tile.nbytes, 0)
