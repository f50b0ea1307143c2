"""A program: the operations of one step in order, with the next use of every tile known in advance.

Layers record it once for each key (kind, config, B, T, ...), and the engine runs it every step. It does not decide where tiles
stand (asynctile/schedule does, and storage/ledger.py for single launches), and it touches no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from asynctile.program.operation import DEVICE, HOST, READ, WRITE, Operation, number_of
from asynctile.program.operation import UPDATE as UPDATED
from asynctile.storage.tile import NEVER, Tile


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A copy of `tile` from a device to the host: outputs[key][index] = tile. A smaller output gets its first elements."""

    tile: Tile
    key: str
    index: tuple[slice, ...]
    device: str = DEVICE
    access: ClassVar[str] = READ
    number: ClassVar[None] = None

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (self.tile,)


class Section(NamedTuple):
    """A named range of entries of a program, for people. phase: "forward", for instance. name: of a layer, for instance."""

    phase: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A named place in the order ("loss", "update") where the host may look at results and decide."""

    name: str
    tiles: ClassVar[tuple[Tile, ...]] = ()
    access: ClassVar[str] = ""
    device: ClassVar[str] = DEVICE
    number: ClassVar[None] = None


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """The way of persistent tiles to RAM, for other devices. `device` has changed them by the entry before, and brings them.

    Without passages, a device would not know when another one has changed a tile that it uses, too.
    """

    tiles: tuple[Tile, ...]
    device: str
    number: ClassVar[None] = None

    @property
    def access(self) -> str:
        return READ * len(self.tiles)


@dataclass(frozen=True, slots=True, eq=False)
class Handover:
    """The way of a temporary tile to another device: `source` has written it, and `device` gets a copy, not through RAM.

    access: of the whole program. In the view of either device, `device` is DEVICE, and the source reads and the other writes.
    """

    tile: Tile
    source: str
    device: str
    access: str = UPDATED
    number: ClassVar[None] = None

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (self.tile,)


@dataclass(frozen=True, slots=True, eq=False)
class Elsewhere:
    """Work of the host or of another device, as one device sees it: RAM is read or written at some of its own tiles."""

    tiles: tuple[Tile, ...]
    access: str
    device: ClassVar[str] = HOST
    number: ClassVar[None] = None


@dataclass(frozen=True, slots=True, eq=False)
class Shipment:
    """The way of a tile between this node and another one: its bytes in RAM are sent, or received bytes overwrite them.

    node: the other one. index: among the temporary, or among the persistent tiles that go from one to the other in a run.
    access: READ to send, WRITE to receive. parts.py makes them.
    """

    tile: Tile
    node: int
    index: int
    access: str
    device: ClassVar[str] = HOST
    number: ClassVar[None] = None

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (self.tile,)


Entry = Operation | Fetch | Mark | Passage | Handover | Shipment | Elsewhere

#: Before this mark, no run changes tiles that outlive it. So entries up to here may run before the host has looked at results.
UPDATE = "update"

#: The device ranks a tile by its own next use of the tile's bytes. AT_HOST + position means that it has none, and that the host
#: uses the tile at that position. Such a tile is evicted first, and RAM still knows when it is needed.
AT_HOST = NEVER >> 1


class Program:
    """The entries of one step. Record with `add`, `fetch`, `mark`, `tile`, `input` and `number`, then call `finish`.

    entries: operations, fetches and marks, in order.
    numbers: labels of the float64 numbers that operations report, by index.
    inputs: small tiles that the host fills before a run, by name.
    temporaries: tiles that live within one run.
    marks: positions of marks, by name. rewritten: for each mark's name, the inputs that get a new value there.
    fetches: the results for the host, in order. sections: (position of the first entry, section), for traces.
    next_uses: for each entry, the next position of each operand in this run (NEVER: not before it is overwritten). Persistent
    tiles continue into the next run of the same program (position + len).
    device_uses: the same, as a device over RAM ranks its tiles, see AT_HOST; `next_uses` itself if nothing runs on the host.
    standing: every persistent tile that the program touches. first_uses: the position at which each is first read or updated.
    devices: how many devices it runs on. view.py has the view of each.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self.numbers: list[str] = []
        self.inputs: dict[str, Tile] = {}
        self.temporaries: list[Tile] = []
        self.marks: dict[str, int] = {}
        self.rewritten: dict[str, tuple[Tile, ...]] = {}
        self.fetches: list[Fetch] = []
        self.sections: list[tuple[int, Section]] = []
        self.next_uses: list[tuple[int, ...]] = []
        self.device_uses: list[tuple[int, ...]] = []
        self.first_uses: dict[Tile, int] = {}
        self.standing: list[Tile] = []
        self.devices = 1
        self._numbers_of: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def tile(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tile:
        """Make a temporary tile of this program."""
        tile = Tile(name, shape, dtype)
        self.temporaries.append(tile)
        return tile

    def input(self, name: str, shape: tuple[int, ...], dtype: Any) -> Tile:
        """Make a small tile that the host fills before each run."""
        tile = Tile(name, shape, dtype, persistent=True)
        self.inputs[name] = tile
        return tile

    def number(self, label: str) -> int:
        """Reserve one float64 that an operation reports to the host; return its index."""
        self.numbers.append(label)
        return len(self.numbers) - 1

    def place_of(self, operation: Operation) -> int | None:
        """Return where an operation writes its number; None if it has none.

        There is one place more than numbers: the last is for results that are ignored.
        """
        return None if operation.number is None else operation.number % (len(self.numbers) + 1)

    def numbers_of(self, beginning: str) -> list[int]:
        """Return the numbers of a finished program whose label starts with `beginning`, in order. The result is cached."""
        if beginning not in self._numbers_of:
            self._numbers_of[beginning] = [i for i, label in enumerate(self.numbers) if label.startswith(beginning)]
        return self._numbers_of[beginning]

    def add(self, entry: Entry) -> None:
        """Add an operation, or any other entry that needs no more than itself."""
        self.entries.append(entry)

    def fetch(self, tile: Tile, key: str, index: tuple[slice, ...]) -> None:
        self.fetches.append(Fetch(tile, key, index))
        self.entries.append(self.fetches[-1])

    def section(self, phase: str, name: str) -> None:
        """Start a named section, for readers of a trace."""
        self.sections.append((len(self.entries), Section(phase, name)))

    def mark(self, name: str, rewrites: Sequence[Tile] = ()) -> None:
        """Add a mark called `name`. rewrites: inputs that the host gives a new value there, in every run."""
        self.marks[name] = len(self.entries)
        self.rewritten[name] = tuple(rewrites)
        self.entries.append(Mark(name))

    def finish(self) -> Program:
        """Compute the next uses, `standing` and `first_uses`; return the program itself.

        Raises ValueError for a temporary that is read before it is written.
        """
        self._check_written()
        first, self.next_uses = self._walk_back(over_ram=False)
        self.standing = list(first)
        self.first_uses = {tile: use - len(self) for tile, use in first.items() if use < NEVER}
        names = {entry.device for entry in self.entries}
        self.devices = 1 + max((number_of(name) for name in names if name != HOST), default=0)
        on_host = HOST in names
        self.device_uses = self._walk_back(over_ram=True)[1] if on_host else self.next_uses
        return self

    def operations(self) -> Iterator[Operation]:
        return (entry for entry in self.entries if isinstance(entry, Operation))

    def _check_written(self) -> None:
        """Raise ValueError for a temporary that is read before it is written: a run would wait for it forever.

        Persistent tiles are not checked, because only the engine knows whether they were written.
        """
        written: set[Tile] = set()
        for entry in self.entries:
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if how != WRITE and tile not in written and not tile.persistent:
                    what = entry.kernel if isinstance(entry, Operation) else type(entry).__name__.lower()
                    names = ", ".join(operand.name for operand in entry.tiles)
                    raise ValueError(
                        f"program {self.name}: {what}({names}) reads temporary {tile.name}, which no earlier entry "
                        "writes; add the operation that writes it first, or make the tile an input"
                    )
            written.update(entry.tiles)  # a tile that this entry only reads was written before

    def _walk_back(self, *, over_ram: bool) -> tuple[dict[Tile, int], list[tuple[int, ...]]]:
        """Return the first use of each persistent tile in the next run, and the next uses behind each entry of this one.

        over_ram: as the first device ranks tiles, see AT_HOST. Walks backward twice, because the next use of a persistent tile
        may be in the next run.
        """
        length = len(self.entries)
        # Each entry is asked once for what both walks need: this runs for every program that arrangement.py compares.
        behind = [(entry.tiles, entry.access, over_ram and entry.device != DEVICE) for entry in reversed(self.entries)]
        upcoming: dict[Tile, int] = {}
        for position, (tiles, access, at_host) in zip(range(2 * length - 1, length - 1, -1), behind, strict=True):
            for tile, how in zip(tiles, access, strict=True):
                if tile.persistent:
                    use = NEVER if how == WRITE else position
                    upcoming[tile] = _use_at_host(use, how, upcoming.get(tile, NEVER)) if at_host else use
        first = dict(upcoming)
        next_use = upcoming.get
        backwards: list[tuple[int, ...]] = []
        for position, (tiles, access, at_host) in zip(range(length - 1, -1, -1), behind, strict=True):
            backwards.append(tuple([next_use(tile, NEVER) for tile in tiles]))
            for tile, how in zip(tiles, access, strict=True):
                use = NEVER if how == WRITE else position
                upcoming[tile] = _use_at_host(use, how, next_use(tile, NEVER)) if at_host else use
        return first, backwards[::-1]


def _use_at_host(use: int, how: str, later: int) -> int:
    """Return the next use of an operand of the host as the first device, over RAM, ranks it (see AT_HOST).

    use, later: the operand's next use seen from before the host's entry, and from behind it.
    """
    if how == WRITE:
        return use
    # A tile that the host only reads may stay on the device for its next use there.
    return later if how == READ and later < AT_HOST else AT_HOST + use
