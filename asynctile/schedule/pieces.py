"""A schedule in pieces: what the device does of it between two things that threads of the host do, each to be one graph.

A piece is a range of entries of one stretch. What the device does of it runs as a whole, on its streams alone, and pieces run
in order, each when the one before is over. What the host does, updates in RAM and moves to and from a file, stands aside:
behind the piece with the last of what it needs of the device, before the first piece that needs it. So no way from the device
to the host and back may close within a piece.

Pure: a function of the schedule and of rough rates. Devices whose threads take entry by entry need no pieces (asynctile/play).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from asynctile.program.operation import HOST, Operation
from asynctile.schedule.clock import Pace
from asynctile.schedule.schedule import RAM, Kind, Schedule, Scheduled

#: Of `Aside.behind`: no piece.
NO_PIECE = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries [start, stop) of stretch number `stretch`. nodes: those that the device does, at least one, ascending. after:
    asides, by entry, that must be over before it begins, beyond those that pieces before it wait for.
    """

    start: int
    stop: int
    stretch: int
    nodes: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aside:
    """An entry that the host does. behind: the piece that must be over first, by number, NO_PIECE for none. waits: other
    asides, by entry, whose bytes it needs; after: those that must only be over.
    """

    entry: int
    behind: int
    waits: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Of `schedule`, both ascending. Every entry is a node of one piece or an aside."""

    schedule: Schedule
    pieces: tuple[Piece, ...]
    asides: tuple[Aside, ...]

    def of(self, stretch: int) -> range:
        """The pieces of a stretch, by number."""
        first = bisect_left(self.pieces, stretch, key=lambda piece: piece.stretch)
        return range(first, bisect_right(self.pieces, stretch, key=lambda piece: piece.stretch))


def cut(schedule: Schedule, pace: Pace, *, most_s: float | None = None) -> Pieces:
    """As few pieces as asides allow.

    most_s: seconds that no piece takes by `pace`, unless one entry alone does; None for any.
    """
    starts = list(_starts(schedule, pace, most_s))
    return _pieces(schedule, starts)


def is_aside(entry: Scheduled) -> bool:
    """Whether threads of the host do it: an operation there, a move to or from a file, a copy within RAM."""
    if isinstance(entry.what, Operation):
        return entry.what.device == HOST
    return entry.kind is Kind.TRANSFER or (entry.kind is Kind.COPY and entry.places[0].tier == RAM)


class Lanes:
    """When entries of one piece are over by `pace`, in seconds from its begin: what computes, the link up and down, side by
    side, each in order. now: when all of them are.
    """

    def __init__(self, schedule: Schedule, pace: Pace) -> None:
        self.now = 0.0
        self._entries = schedule.entries
        self._pace = pace
        self._free = [0.0, 0.0, 0.0]
        self._over: dict[int, float] = {}

    def begin(self) -> None:
        """A piece."""
        self.now = 0.0
        self._free = [0.0, 0.0, 0.0]
        self._over = {}

    def add(self, index: int) -> None:
        """An entry that the device does."""
        entry, over = self._entries[index], self._over
        lane = _LANES[entry.kind]
        ready = self._free[lane]
        for before in (*entry.waits, *entry.after):
            ready = max(ready, over.get(before, 0.0))
        over[index] = self._free[lane] = ready + _seconds(entry, self._pace)
        self.now = max(self.now, over[index])


#: Kinds on one stream are done in order.
_LANES = {Kind.OPERATION: 0, Kind.COPY: 0, Kind.UPLOAD: 1, Kind.DOWNLOAD: 2, Kind.FETCH: 2}


def _seconds(entry: Scheduled, pace: Pace) -> float:
    """Of an entry by itself, on the device."""
    if isinstance(entry.what, Operation):
        return pace.operation(entry.what.flops, sum(tile.nbytes for tile in entry.what.operands))
    if entry.kind is Kind.COPY:
        return pace.operation(0, 2 * entry.nbytes)
    return entry.nbytes / pace.link_per_s + pace.operation_s


def _starts(schedule: Schedule, pace: Pace, most_s: float | None) -> Iterator[int]:
    """The first entry of each piece."""
    entries, lanes = schedule.entries, Lanes(schedule, pace)
    behind = _Behind(schedule)
    for first, stop in pairwise((*schedule.stretches, len(entries))):
        is_begun = False
        for index in range(first, stop):
            if is_aside(entries[index]):
                behind.add(index)
                continue
            if is_begun and most_s is not None:
                lanes.add(index)
            if not is_begun or behind.closes(index) or (most_s is not None and lanes.now > most_s):
                yield index if is_begun else first
                behind.begin()
                lanes.begin()
                if most_s is not None:
                    lanes.add(index)
                is_begun = True
            behind.add(index)


class _Behind:
    """Of each entry so far, the piece behind which it is: its own, or of an aside the last that it waits for in any way."""

    def __init__(self, schedule: Schedule) -> None:
        self.piece = NO_PIECE
        self.of: list[int] = []
        self._entries = schedule.entries
        self._aside: list[bool] = []

    def begin(self) -> None:
        """The next piece."""
        self.piece += 1

    def closes(self, index: int) -> bool:
        """Whether an entry of the device would close a way that left it in this very piece."""
        entry = self._entries[index]
        return any(self._aside[before] and self.of[before] == self.piece for before in (*entry.waits, *entry.after))

    def add(self, index: int) -> None:
        entry, aside = self._entries[index], is_aside(self._entries[index])
        before = (self.of[one] for one in (*entry.waits, *entry.after))
        self.of.append(max(before, default=NO_PIECE) if aside else self.piece)
        self._aside.append(aside)


def _pieces(schedule: Schedule, starts: Sequence[int]) -> Pieces:
    """With pieces that begin at these entries."""
    entries = schedule.entries
    aside = [is_aside(entry) for entry in entries]
    pieces: list[Piece] = []
    settled: set[int] = set()
    for start, following in pairwise((*starts, len(entries))):
        stretch = entries[start].stretch
        stop = following if stretch + 1 == len(schedule.stretches) else min(following, schedule.stretches[stretch + 1])
        nodes = tuple(index for index in range(start, stop) if not aside[index])
        needed = {before for index in nodes for before in (*entries[index].waits, *entries[index].after) if aside[before]}
        pieces.append(Piece(start, stop, stretch, nodes, tuple(sorted(needed - settled))))
        settled |= needed
    asides = [_aside_of(schedule, index, aside, starts) for index in range(len(entries)) if aside[index]]
    return Pieces(schedule, tuple(pieces), tuple(asides))


def _aside_of(schedule: Schedule, index: int, aside: Sequence[bool], starts: Sequence[int]) -> Aside:
    entry = schedule.entries[index]
    last = max((before for before in (*entry.waits, *entry.after) if not aside[before]), default=-1)
    waits, after = (tuple(before for before in edges if aside[before]) for edges in (entry.waits, entry.after))
    return Aside(index, bisect_right(starts, last) - 1, waits, after)
