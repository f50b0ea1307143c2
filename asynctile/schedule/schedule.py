"""A schedule: one step of a program, every operation and move with its place and what it waits for.

Operations, loads and write-backs appear once, in the order in which they were decided. The last entries bring every tile to the
program's seam. A step that begins there can repeat; a step that begins elsewhere runs once. Pure and frozen. decide.py works it
out; workers that know nothing of tiles carry it out (asynctile/execute/workers).

The way not taken: wait until the moves of a program repeat by themselves. Some settle after a dozen steps, some never.

Places are numbers of slots in a tier, or of blocks in the spill file, not addresses. When playing begins, each number is
assigned a slot of the arena or a block of the file. In a packed tier, places are offsets in bytes (packing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.program.program import Program
from asynctile.schedule.start import Seam
from asynctile.storage.residency import State
from asynctile.storage.tile import Tile

#: Numbers of the tiers: TOP is the first device, RAM the tier below all devices, and further devices follow (`tier_of`). If RAM
#: is the device, RAM is TOP. DISK is the spill file. RESULT holds the fetched results for the host, by the number of the fetch.
#: NODES and the numbers below it are other nodes (`node_tier_of`).
TOP, RAM, DISK, RESULT, NODES = 0, 1, -1, -2, -3
#: No entry: the bytes were not written in this step.
NOBODY = -1


def tier_of(device: int) -> int:
    """Return the number of the tier of a device. Devices count from 0."""
    return TOP if device == 0 else RAM + device


def node_tier_of(node: int) -> int:
    """Return the number that another node has among the tiers. Nodes count from 0."""
    return NODES - node


class Kind(IntEnum):
    """The kind of an entry.

    OPERATION runs a kernel. UPLOAD and DOWNLOAD copy over the link between RAM and a device, PASS over that between two
    devices. COPY copies within a tier, and FETCH copies a result to the host. TRANSFER moves a tile between RAM and a file, or
    between RAM and another node.
    """

    OPERATION = 0
    UPLOAD = 1
    DOWNLOAD = 2
    PASS = 3
    COPY = 4
    TRANSFER = 5
    FETCH = 6


@dataclass(frozen=True, slots=True)
class Place:
    """A slot: its tier, its size in bytes, and its number in its pool; in a packed tier, its offset in bytes.

    For DISK: the size and offset of a block. For RESULT: the size and number of a result. For a node: the size of the tile, and
    which transfer of the run it is, among those that go the same way.
    """

    tier: int
    nbytes: int
    index: int


#: Returns the array at a place of a real tier, given (place, shape, dtype).
Arrays = Callable[[Place, tuple[int, ...], Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """One entry of a schedule.

    what: the operation, or the tile that is moved. places: of the operation's operands; for a move, where to and where from.
    waits: earlier entries whose bytes this entry needs. after: earlier entries that must only be over, because this entry takes
    their slot or overwrites what they read.
    stretch: the number of its stretch, see Schedule.stretches.
    """

    kind: Kind
    what: Operation | Tile
    places: tuple[Place, ...]
    waits: tuple[int, ...]
    after: tuple[int, ...]
    stretch: int

    @property
    def device(self) -> int:
        """The device whose compute or link carries it out, from 0; 0 too for work of the host. A PASS is its target's."""
        places = self.places[:1] if self.kind is Kind.PASS else self.places
        return max((place.tier - RAM for place in places if place.tier > RAM), default=0)

    @property
    def node(self) -> int | None:
        """The other node to or from which a transfer goes; None for everything else."""
        lowest = min((place.tier for place in self.places), default=TOP)
        return NODES - lowest if lowest <= NODES else None

    @property
    def nbytes(self) -> int:
        """Bytes that a copy moves (whole pages for a transfer to or from the file); 0 for an operation."""
        if self.kind is Kind.TRANSFER:
            return next(place.nbytes for place in self.places if place.tier < 0)
        return self.what.nbytes if isinstance(self.what, Tile) else 0

    @property
    def reports(self) -> bool:
        """Whether it reports a number to the host."""
        return isinstance(self.what, Operation) and self.what.number not in (None, NO_NUMBER)

    def __str__(self) -> str:
        where = " ".join(f"{place.tier}:{place.index}" for place in self.places)
        what = self.what.name if isinstance(self.what, Tile) else f"{self.what.kernel}({self.what.operands[0].name})"
        return f"{self.kind.name.lower()} {what} at {where} waits {list(self.waits)} after {list(self.after)}"


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where a tile stands in one tier, at some moment of a schedule.

    written: the entry that wrote it here last, NOBODY if that was before the step. saved: the same for its place below.
    """

    tile: Tile
    tier: int
    state: State
    place: Place | None
    written: int
    saved: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """One step of `program`. entries: in program order.

    stretches: stretches[i] is the first entry of stretch i. A stretch is the entries between two marks. It may run once the
    host has looked at the results before it. marks: for each mark's name, the number of the stretch behind it.
    start: where all tiles stand when the step begins. at: the same for each mark, so a step can be left there. end: the same
    when the step ends, with the entries that wrote the tiles. seams: of each tier, where the program's steps end.
    peaks: the most bytes that stand in each tier. repeats: the step ends where it begins.
    """

    program: Program
    entries: tuple[Scheduled, ...]
    stretches: tuple[int, ...]
    marks: Mapping[str, int]
    start: tuple[Standing, ...]
    at: Mapping[str, tuple[Standing, ...]]
    end: tuple[Standing, ...]
    seams: tuple[Seam, ...]
    peaks: tuple[int, ...]
    repeats: bool

    def __len__(self) -> int:
        return len(self.entries)

    def places(self) -> Iterator[Place]:
        """Yield every place that is used, as often as it is used."""
        for entry in self.entries:
            yield from entry.places
        for standing in (self.start, *self.at.values(), self.end):
            yield from (one.place for one in standing if one.place is not None)

    def inputs_below(self) -> list[Tile]:
        """Return the inputs that stand nowhere in memory when the step begins: the host writes them to the file.

        An input that no transfer moves is not among them, because it gets a new value at a mark before the step reads it.
        """
        standing = {one.tile for one in self.start if one.place is not None}
        moved = {entry.what for entry in self.entries if entry.kind is Kind.TRANSFER and entry.node is None}
        return [tile for tile in self.program.inputs.values() if tile in moved and tile not in standing]
