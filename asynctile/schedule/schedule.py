"""A schedule: one step of a program in its steady state, every move with its place and what it waits for, from a start to
that same start again.

Operations, loads and write-backs stand here once, in the order in which they are decided. Pure and frozen. It is worked out by
decide.py, and played by workers that know nothing of tiles (asynctile/play). The way not taken: wait until the moves of a
program repeat by themselves. Some settle after a dozen steps, some never; so the last entries of a schedule bring every tile
back to where the step began.

Places are numbers of slots in a tier, or of blocks in the spill file, not addresses. Which slot of the arena each of them is,
and which block of the file, is settled when playing begins. In a tier that is packed they are bytes of it (packing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from asynctile.program.operation import Operation
from asynctile.program.program import Program
from asynctile.storage.residency import State
from asynctile.storage.tile import Tile

#: Tiers by number, from the top down, and below them the spill file. Where RAM is the device it is the top. RESULT: where what
#: the program fetches is put for the host, by the number of the fetch.
TOP, RAM, DISK, RESULT = 0, 1, 2, 3
#: No entry has written it.
NOBODY = -1


class Kind(IntEnum):
    """What an entry does: run a kernel; copy over the link, up or down, or within the device; move between RAM and a file;
    copy a result to the host.
    """

    OPERATION = 0
    UPLOAD = 1
    DOWNLOAD = 2
    COPY = 3
    TRANSFER = 4
    FETCH = 5


@dataclass(frozen=True, slots=True)
class Place:
    """A slot: the tier, its size in bytes, and its number in its pool, or in a tier that is packed its offset in bytes. A block
    of DISK: its size and offset. A result: its size and number.
    """

    tier: int
    nbytes: int
    index: int


#: Of real tiers, the array at a place: (place, shape, dtype).
Arrays = Callable[[Place, tuple[int, ...], Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """One entry.

    what: the operation, or the tile that is moved. places: of the operation's operands; of a move, where to and where from.
    waits: earlier entries whose bytes it needs. after: those that must only be over, since it takes their slot or overwrites
    what they read. stretch: its number, see Schedule.
    """

    kind: Kind
    what: Operation | Tile
    places: tuple[Place, ...]
    waits: tuple[int, ...]
    after: tuple[int, ...]
    stretch: int

    @property
    def nbytes(self) -> int:
        """What a copy moves; a transfer, whole pages."""
        if self.kind is Kind.TRANSFER:
            return next(place.nbytes for place in self.places if place.tier == DISK)
        return self.what.nbytes if isinstance(self.what, Tile) else 0

    def __str__(self) -> str:
        where = " ".join(f"{place.tier}:{place.index}" for place in self.places)
        what = self.what.name if isinstance(self.what, Tile) else f"{self.what.kernel}({self.what.operands[0].name})"
        return f"{self.kind.name.lower()} {what} at {where} waits {list(self.waits)} after {list(self.after)}"


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where a tile stands in one tier at some moment of a schedule.

    written: the entry that wrote it here last, NOBODY if that was before the step. saved: the same of its place below.
    """

    tile: Tile
    tier: int
    state: State
    place: Place | None
    written: int
    saved: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """program: of which this is one step. entries: in program order.

    A stretch is what may run once the host has looked at what came before: stretches[i] is the first entry of the i-th. marks:
    by the name of a mark the stretch behind it. start: where all tiles stand when the step begins, and when it ends.
    at: the same at each mark, so that a step can be left there; end: at the end, as `start` but for who wrote it. peaks: the
    most bytes that stand in each tier.
    """

    program: Program
    entries: tuple[Scheduled, ...]
    stretches: tuple[int, ...]
    marks: Mapping[str, int]
    start: tuple[Standing, ...]
    at: Mapping[str, tuple[Standing, ...]]
    end: tuple[Standing, ...]
    peaks: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def places(self) -> Iterator[Place]:
        """Every place that is used, each as often as it is."""
        for entry in self.entries:
            yield from entry.places
        for standing in (self.start, *self.at.values()):
            yield from (one.place for one in standing if one.place is not None)

    def inputs_below(self) -> list[Tile]:
        """Inputs that stand nowhere in memory when the step begins: the host writes them to the file. An input that no transfer
        moves is not among them: it gets another value at a mark before the step reads it.
        """
        standing = {one.tile for one in self.start if one.place is not None}
        moved = {entry.what for entry in self.entries if entry.kind is Kind.TRANSFER}
        return [tile for tile in self.program.inputs.values() if tile in moved and tile not in standing]

    def lines(self) -> Iterator[str]:
        """As text, an entry a line, for whoever looks for what went wrong."""
        for index, entry in enumerate(self.entries):
            if index in self.stretches:
                yield f"stretch {entry.stretch}"
            yield f"{index:6} {entry}"
