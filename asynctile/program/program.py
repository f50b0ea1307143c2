"""A program: the operations of one step in order, with the next use of every tile known in advance.

Layers record it once for a key (kind, config, B, T, ...); the engine runs it every step. It decides no placement
(storage/ledger.py) and touches no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from asynctile.program.operation import DEVICE, HOST, READ, WRITE, Operation
from asynctile.storage.tile import NEVER, Tile


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """Copy `tile` to the host: outputs[key][index] = tile, in program order; what is smaller gets its first elements."""

    tile: Tile
    key: str
    index: tuple[slice, ...]
    access: ClassVar[str] = READ
    device: ClassVar[str] = DEVICE
    number: ClassVar[None] = None

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (self.tile,)


class Section(NamedTuple):
    """A stretch of a program, for people. phase: "forward" for instance. name: of a layer for instance."""

    phase: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A named place in the order, where the host may look and decide ("loss", "update")."""

    name: str
    tiles: ClassVar[tuple[Tile, ...]] = ()
    access: ClassVar[str] = ""
    device: ClassVar[str] = DEVICE
    number: ClassVar[None] = None


Entry = Operation | Fetch | Mark

#: The mark before which no run changes what outlives it: whatever the host looks at before, the rest up to here may run.
UPDATE = "update"

#: What the device ranks tiles by is its own next use of their bytes. AT_HOST + position: it has none, the host uses them then.
#: So such a tile is the first to leave, and RAM still knows when it is wanted.
AT_HOST = NEVER >> 1


class Program:
    """Record with `add`, `fetch`, `mark`, `tile`, `input`, `number`; then `finish`.

    entries: what happens, in order.
    numbers: labels of the float64 numbers that operations report, by index.
    inputs: small tiles that the host fills before a run, by name.
    temporaries: tiles that live within one run.
    marks: where they are, by name. rewritten: by mark, the inputs that get another value there. fetches: its results for
    the host, in order.
    next_uses: for each entry the next position of each operand in this run (NEVER: not again before it is
    overwritten); persistent tiles continue into the next run of the same program (position + len).
    sections: where which stretch begins, for traces.
    device_uses: the same as a device over RAM ranks its tiles, see AT_HOST; `next_uses` itself if nothing runs on the host.
    standing: every persistent tile it touches. first_uses: where each of them is first read or updated.
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
        self._numbers_of: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def tile(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tile:
        """A temporary of this program."""
        tile = Tile(name, shape, dtype)
        self.temporaries.append(tile)
        return tile

    def input(self, name: str, shape: tuple[int, ...], dtype: Any) -> Tile:
        """A small tile that the host fills before each run."""
        tile = Tile(name, shape, dtype, persistent=True)
        self.inputs[name] = tile
        return tile

    def number(self, label: str) -> int:
        """Reserve one float64 that an operation reports to the host."""
        self.numbers.append(label)
        return len(self.numbers) - 1

    def place_of(self, operation: Operation) -> int | None:
        """Where an operation puts its number, among one more than are reported: the last is for what nobody asked for. None if
        it has none.
        """
        return None if operation.number is None else operation.number % (len(self.numbers) + 1)

    def numbers_of(self, beginning: str) -> list[int]:
        """Of a finished program: the numbers whose label begins so, in order; looked for once."""
        if beginning not in self._numbers_of:
            self._numbers_of[beginning] = [i for i, label in enumerate(self.numbers) if label.startswith(beginning)]
        return self._numbers_of[beginning]

    def add(self, operation: Operation) -> None:
        self.entries.append(operation)

    def fetch(self, tile: Tile, key: str, index: tuple[slice, ...]) -> None:
        self.fetches.append(Fetch(tile, key, index))
        self.entries.append(self.fetches[-1])

    def section(self, phase: str, name: str) -> None:
        """What is added from now on is that, for people who look at a trace."""
        self.sections.append((len(self.entries), Section(phase, name)))

    def mark(self, name: str, rewrites: Sequence[Tile] = ()) -> None:
        """rewrites: inputs that the host gives another value there, in every run."""
        self.marks[name] = len(self.entries)
        self.rewritten[name] = tuple(rewrites)
        self.entries.append(Mark(name))

    def finish(self) -> Program:
        """Compute `next_uses` and what comes with them. ValueError if a temporary is read that no entry before has written."""
        self._check_written()
        first, self.next_uses = self._walk_back(_use)
        self.standing = list(first)
        self.first_uses = {tile: use - len(self) for tile, use in first.items() if use < NEVER}
        on_host = any(entry.device == HOST for entry in self.entries)
        self.device_uses = self._walk_back(_device_use)[1] if on_host else self.next_uses
        return self

    def operations(self) -> Iterator[Operation]:
        return (entry for entry in self.entries if isinstance(entry, Operation))

    def _check_written(self) -> None:
        """A run would wait for such a tile for ever. Of persistent tiles only an engine can tell."""
        written: set[Tile] = set()
        for entry in self.entries:
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if not tile.persistent and how != WRITE and tile not in written:
                    what = entry.kernel if isinstance(entry, Operation) else "fetch"
                    names = ", ".join(operand.name for operand in entry.tiles)
                    raise ValueError(
                        f"program {self.name}: {what}({names}) reads temporary {tile.name}, which nothing before it has "
                        "written; add the operation that writes it first, or make the tile an input"
                    )
            written.update(tile for tile, how in zip(entry.tiles, entry.access, strict=True) if how != READ)

    def _walk_back(self, use: Callable[[int, str, str, int], int]) -> tuple[dict[Tile, int], list[tuple[int, ...]]]:
        """The first use of each persistent tile in the next run, and the next uses behind each entry of this one.

        Two walks backwards, since the next use of a persistent tile may be in the next run.
        """
        length = len(self.entries)
        upcoming: dict[Tile, int] = {}
        for position in range(length - 1, -1, -1):
            entry = self.entries[position]
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if tile.persistent:
                    upcoming[tile] = use(position + length, how, entry.device, upcoming.get(tile, NEVER))
        first = dict(upcoming)
        backwards: list[tuple[int, ...]] = []
        for position in range(length - 1, -1, -1):
            entry = self.entries[position]
            backwards.append(tuple(upcoming.get(tile, NEVER) for tile in entry.tiles))
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                upcoming[tile] = use(position, how, entry.device, upcoming.get(tile, NEVER))
        return first, backwards[::-1]


def _use(position: int, how: str, device: str, later: int) -> int:
    """What an operand's next use is, seen from before `position`; later: seen from behind it."""
    return NEVER if how == WRITE else position


def _device_use(position: int, how: str, device: str, later: int) -> int:
    """The same as the device ranks it."""
    if how == WRITE or device == DEVICE:
        return _use(position, how, device, later)
    # What the host only reads may stay on the device for its next use there.
    return later if how == READ and later < AT_HOST else AT_HOST + position
