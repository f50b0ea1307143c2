"""A schedule in pieces: what the device does of it between two things that threads of the host do, each to be one graph.

A piece is a range of entries of one stretch. What the device does of it runs as a whole, on its streams alone, and pieces run
in order, each when the one before is over. What the host does, updates in RAM and moves to and from a file, stands aside:
behind the piece with the last of what it needs of the device, before the first piece that needs it. So no way from the device
to the host and back may close within a piece; and pieces end early enough for the host to do its part beside the next one.

Pure: a function of the schedule and of rough rates. Devices whose threads take entry by entry need no pieces (asynctile/play).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from asynctile.program.operation import HOST, Operation
from asynctile.schedule.pace import Pace
from asynctile.schedule.schedule import RAM, Kind, Schedule, Scheduled

#: Of `Aside.behind`: no piece.
NO_PIECE = -1
#: In how many parts the host gets its work, each behind a piece: of more, pieces would lose at their ends what that hides.
PARTS = 12
#: Of the time from what an aside needs of the device until the device needs the aside, what a piece has left to end. As much is
#: for the next one, beside which the host works, and a little is lost since pieces cannot end anywhere.
SHARE = 0.45
#: Seconds that a piece takes at least by rough rates where nothing forces its end: what begins and ends it takes some itself.
LEAST_S = 2e-4


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
    """As few pieces as asides allow, and where there are asides about PARTS more, so that the host works beside the device.

    most_s: seconds that no piece takes by `pace`, unless one entry alone does; None for any.
    """
    ways = _Ways(schedule)
    return _pieces(ways, list(_starts(ways, _ends(ways, pace), pace, most_s)))


def is_aside(entry: Scheduled) -> bool:
    """Whether threads of the host do it: an operation there, a move to or from a file, a copy within RAM."""
    if isinstance(entry.what, Operation):
        return entry.what.device == HOST
    return entry.kind is Kind.TRANSFER or (entry.kind is Kind.COPY and entry.places[0].tier == RAM)


class _Ways:
    """How a schedule goes from the device to its host and back.

    aside: by entry, whether it is one. before: by entry, all that it waits for. left: by aside, the last entry of the device
    that it needs, be it through other asides; -1 for none. joined: by aside, the first entry of the device that waits for it,
    if there is one.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.aside = [is_aside(entry) for entry in schedule.entries]
        self.before = [(*entry.waits, *entry.after) for entry in schedule.entries]
        self.left: dict[int, int] = {}
        self.joined: dict[int, int] = {}
        for index, before in enumerate(self.before):
            if self.aside[index]:
                self.left[index] = max((self.left.get(one, one) for one in before), default=-1)
            else:
                for one in before:
                    self.joined.setdefault(one, index)

    def closes(self, index: int, start: int) -> bool:
        """Whether entry `index`, which the device does, follows through asides from one at `start` or behind it."""
        return any(self.aside[one] and self.left[one] >= start for one in self.before[index])


class _Lanes:
    """When entries of the device are over by `pace`, in seconds: what computes, the link up and down, side by side, each in
    order. now: when all of them are.
    """

    def __init__(self, ways: _Ways, pace: Pace) -> None:
        self._entries = ways.schedule.entries
        self._before = ways.before
        self._pace = pace
        self.begin()

    def begin(self) -> None:
        """At zero, whatever came before."""
        self.now = 0.0
        self._free = [0.0, 0.0, 0.0]
        self._over: dict[int, float] = {}

    def add(self, index: int) -> None:
        entry, over = self._entries[index], self._over
        lane = _LANES[entry.kind]
        ready = self._free[lane]
        for one in self._before[index]:
            ready = max(ready, over.get(one, 0.0))
        over[index] = self._free[lane] = ready + _seconds(entry, self._pace)
        self.now = max(self.now, over[index])


#: Kinds on one stream are done in order.
_LANES = {Kind.OPERATION: 0, Kind.COPY: 0, Kind.UPLOAD: 1, Kind.DOWNLOAD: 2, Kind.FETCH: 2}


def _seconds(entry: Scheduled, pace: Pace) -> float:
    """Of an entry by itself, on the device."""
    if isinstance(entry.what, Operation):
        return pace.operation(entry.what.flops, _nbytes(entry))
    if entry.kind is Kind.COPY:
        return pace.operation(0, 2 * entry.nbytes)
    return entry.nbytes / pace.link_per_s + pace.operation_s


def _nbytes(entry: Scheduled) -> int:
    """What it reads or writes."""
    return sum(tile.nbytes for tile in entry.what.operands) if isinstance(entry.what, Operation) else entry.nbytes


def _ends(ways: _Ways, pace: Pace) -> set[int]:
    """Entries of the device behind which pieces should end for the sake of the host, each the last that some aside needs.

    The host gets its work in PARTS alike, and sooner where the device soon needs it: within a SHARE of the time until then.
    Where that is too little for a piece, the device waits for the host.
    """
    asides = sorted((left, index) for index, left in ways.left.items() if left >= 0)
    if not asides:
        return set()
    over = _reached(ways, pace)
    span = over[-1] - over[asides[0][0]]
    parts = min(PARTS, int(span / LEAST_S))
    if parts < 2:
        return set()
    ends, stops = set[int](), [*ways.schedule.stretches, len(over)]
    quota = sum(_nbytes(ways.schedule.entries[index]) for _, index in asides) / parts
    part, due = 0.0, math.inf
    for (left, index), (following, _) in pairwise((*asides, (-1, -1))):
        part += _nbytes(ways.schedule.entries[index])
        share = SHARE * (over[ways.joined.get(index, -1)] - over[left])
        if share >= span / parts:
            due = min(due, over[left] + share)
        if part >= quota or over[following] > due:
            stretch = ways.schedule.entries[left].stretch
            if over[stops[stretch + 1] - 1] - over[left] >= LEAST_S:
                ends.add(left)
            part, due = 0.0, math.inf
    return ends


def _reached(ways: _Ways, pace: Pace) -> list[float]:
    """By entry, when the device is through with all up to there, were all of it one piece, and asides done at once."""
    lanes, over = _Lanes(ways, pace), []
    for index, aside in enumerate(ways.aside):
        if not aside:
            lanes.add(index)
        over.append(lanes.now)
    return over


def _starts(ways: _Ways, ends: Collection[int], pace: Pace, most_s: float | None) -> Iterator[int]:
    """The first entry of each piece. ends: those with which one should end."""
    lanes = _Lanes(ways, pace)
    for first, stop in pairwise((*ways.schedule.stretches, len(ways.aside))):
        start, is_over = first, True
        nodes = [index for index in range(first, stop) if not ways.aside[index]]
        for node in nodes:
            if most_s is not None:
                lanes.add(node)
                is_over = is_over or lanes.now > most_s
            if is_over or ways.closes(node, start):
                start = first if node == nodes[0] else node
                yield start
                lanes.begin()
                if most_s is not None:
                    lanes.add(node)
            is_over = node in ends


def _pieces(ways: _Ways, starts: Sequence[int]) -> Pieces:
    """With pieces that begin at these entries."""
    schedule, aside = ways.schedule, ways.aside
    stops = [*schedule.stretches, len(schedule)]
    pieces: list[Piece] = []
    settled: set[int] = set()
    for start, following in pairwise((*starts, len(schedule))):
        stretch = schedule.entries[start].stretch
        stop = min(following, stops[stretch + 1])
        nodes = tuple(index for index in range(start, stop) if not aside[index])
        needed = {one for index in nodes for one in ways.before[index] if aside[one]}
        pieces.append(Piece(start, stop, stretch, nodes, tuple(sorted(needed - settled))))
        settled |= needed
    return Pieces(schedule, tuple(pieces), tuple(_aside(ways, index, starts) for index in ways.left))


def _aside(ways: _Ways, index: int, starts: Sequence[int]) -> Aside:
    entry = ways.schedule.entries[index]
    last = max((one for one in ways.before[index] if not ways.aside[one]), default=-1)
    waits, after = (tuple(one for one in edges if ways.aside[one]) for edges in (entry.waits, entry.after))
    return Aside(index, bisect_right(starts, last) - 1, waits, after)
