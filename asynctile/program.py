"""A program: the operations of one step in order, with the next use of every tile known in advance.

Layers record it once for a key (kind, config, B, T, ...); the engine runs it every step. It decides no placement
(storage/residency.py) and touches no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from asynctile.handle import Handle
from asynctile.operation import READ, WRITE, Operation
from asynctile.storage.tile import NEVER, Tile


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """Copy `tile` to the host: outputs[key][index] = tile, in program order."""

    tile: Handle
    key: str
    index: tuple[slice, ...]
    access: ClassVar[str] = READ

    @property
    def tiles(self) -> tuple[Handle, ...]:
        return (self.tile,)


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A named place in the order, where the host may look and decide ("loss", "update")."""

    name: str
    tiles: ClassVar[tuple[Handle, ...]] = ()
    access: ClassVar[str] = ""


Entry = Operation | Fetch | Mark


class Program:
    """Record with `add`, `fetch`, `mark`, `tile`, `input`, `number`; then `finish`.

    entries: what happens, in order.
    numbers: labels of the float64 numbers that operations report, by index.
    inputs: small tiles that the host fills before a run, by name.
    temporaries: tiles that live within one run.
    next_uses: for each entry the next position of each operand in this run (NEVER: not again before it is
    overwritten); persistent tiles continue into the next run of the same program (position + len).
    standing: every persistent tile it touches. first_uses: where each of them is first read or updated.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self.numbers: list[str] = []
        self.inputs: dict[str, Handle] = {}
        self.temporaries: list[Handle] = []
        self.marks: dict[str, int] = {}
        self.next_uses: list[tuple[int, ...]] = []
        self.first_uses: dict[Tile, int] = {}
        self.standing: list[Handle] = []

    def __len__(self) -> int:
        return len(self.entries)

    def tile(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Handle:
        """A temporary of this program."""
        tile = Handle(name, shape, dtype)
        self.temporaries.append(tile)
        return tile

    def input(self, name: str, shape: tuple[int, ...], dtype: Any) -> Handle:
        """A small tile that the host fills before each run."""
        tile = Handle(name, shape, dtype, persistent=True)
        self.inputs[name] = tile
        return tile

    def number(self, label: str) -> int:
        """Reserve one float64 that an operation reports to the host."""
        self.numbers.append(label)
        return len(self.numbers) - 1

    def add(self, operation: Operation) -> None:
        self.entries.append(operation)

    def fetch(self, tile: Handle, key: str, index: tuple[slice, ...]) -> None:
        self.entries.append(Fetch(tile, key, index))

    def mark(self, name: str) -> None:
        self.marks[name] = len(self.entries)
        self.entries.append(Mark(name))

    def finish(self) -> Program:
        """Compute `next_uses` by one walk backwards (two for persistent tiles, whose next use may be next run)."""
        length = len(self.entries)
        upcoming: dict[Handle, int] = {}
        for position in range(length - 1, -1, -1):
            entry = self.entries[position]
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                if tile.persistent and how != WRITE:
                    upcoming[tile] = position + length
                elif tile.persistent:
                    upcoming[tile] = NEVER
        self.standing = list(upcoming)
        self.first_uses = {tile: use - length for tile, use in upcoming.items() if use < NEVER}
        backwards: list[tuple[int, ...]] = []
        for position in range(length - 1, -1, -1):
            entry = self.entries[position]
            backwards.append(tuple(upcoming.get(tile, NEVER) for tile in entry.tiles))
            for tile, how in zip(entry.tiles, entry.access, strict=True):
                upcoming[tile] = NEVER if how == WRITE else position
        self.next_uses = backwards[::-1]
        return self

    def operations(self) -> Iterator[Operation]:
        return (entry for entry in self.entries if isinstance(entry, Operation))
