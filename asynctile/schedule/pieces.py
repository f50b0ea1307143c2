"""A schedule in pieces: the work of the devices from one job of the host to the next. Each piece becomes one CUDA graph.

A piece is a range of entries of one stretch, between two marks. Its device entries run as a whole, on the devices' streams
alone, and pieces run in order, each when the one before is over. The host's entries (updates in RAM, moves to and from a
file) are asides: an aside runs behind the piece that has the last device entry it needs, and before the first piece that
needs it. So no path from the device to the host and back may lie within one piece. Pieces also end early enough for the host
to work beside the next one.

Pure: a function of the schedule and of rough rates. Devices whose threads take single entries need no pieces
(asynctile/execute/workers).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from asynctile.program.operation import HOST, Operation
from asynctile.schedule.pace import Pace
from asynctile.schedule.schedule import RAM, Kind, Schedule, Scheduled

#: No piece, in `Aside.behind`.
NO_PIECE = -1
#: The number of parts in which the host gets its work, each behind a piece. With more parts, the ends of pieces would cost more
#: than the overlap hides.
PARTS = 12
#: From the device entry that an aside needs to the device entry that needs the aside, a piece must end within this fraction of
#: the time. The next piece, beside which the host works, gets as much; a little is lost because pieces cannot end anywhere.
SHARE = 0.45
#: The shortest piece in seconds, by rough rates, unless its end is forced: beginning and ending a piece takes time too.
LEAST_S = 2e-4


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries [start, stop) of stretch number `stretch`.

    nodes: the device's entries, at least one, ascending. after: the asides (entry numbers) that must be over before the piece
    begins, beyond those that earlier pieces wait for.
    """

    start: int
    stop: int
    stretch: int
    nodes: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aside:
    """An entry that the host does.

    behind: the number of the piece that must be over first, NO_PIECE for none. waits: other asides (entry numbers) whose bytes
    it needs. after: asides that must only be over.
    """

    entry: int
    behind: int
    waits: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces and asides of `schedule`, both ascending. Every entry is a node of one piece or an aside."""

    schedule: Schedule
    pieces: tuple[Piece, ...]
    asides: tuple[Aside, ...]

    def of(self, stretch: int) -> range:
        """Return the numbers of the pieces of a stretch."""
        first = bisect_left(self.pieces, stretch, key=lambda piece: piece.stretch)
        return range(first, bisect_right(self.pieces, stretch, key=lambda piece: piece.stretch))


def cut(schedule: Schedule, pace: Pace, *, most_s: float | None = None) -> Pieces:
    """Cut a schedule into as few pieces as its asides allow, plus about PARTS more if it has asides.

    With the extra pieces the host can work beside the device. most_s: the longest piece in seconds by `pace`, unless a single
    entry takes longer; None: any length.
    """
    ways = _Ways(schedule)
    return _pieces(ways, list(_starts(ways, _ends(ways, pace), pace, most_s)))


def is_aside(entry: Scheduled) -> bool:
    """Return whether host threads do the entry: a host operation, a move to or from a file, or a copy within RAM."""
    if isinstance(entry.what, Operation):
        return entry.what.device == HOST
    return entry.kind is Kind.TRANSFER or (entry.kind is Kind.COPY and entry.places[0].tier == RAM)


class _Ways:
    """The paths of a schedule from the device to its host and back.

    aside: for each entry, whether it is an aside. before: for each entry, all entries that it waits for.
    left: for each aside, the last device entry that it needs, also through other asides; -1 for none. What comes from another
    node may need all that has gone there and has come from there before.
    joined: for each aside that the device waits for, the first device entry that does.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.aside = [is_aside(entry) for entry in schedule.entries]
        self.before = [(*entry.waits, *entry.after) for entry in schedule.entries]
        self.left: dict[int, int] = {}
        self.joined: dict[int, int] = {}
        shipped = -1
        for index, before in enumerate(self.before):
            if self.aside[index]:
                self.left[index] = max((self.left.get(one, one) for one in before), default=-1)
                if schedule.entries[index].node is not None:
                    shipped = self.left[index] = max(shipped, self.left[index])
            else:
                for one in before:
                    self.joined.setdefault(one, index)

    def closes(self, index: int, start: int) -> bool:
        """Return whether device entry `index` depends, through asides, on a device entry at `start` or behind it."""
        return any(self.aside[one] and self.left[one] >= start for one in self.before[index])


class _Lanes:
    """The times, in seconds by `pace`, at which device entries are over.

    The lanes of all devices run side by side, each in order: compute, link up, link down, and copies from other devices. now:
    when all entries so far are over.
    """

    def __init__(self, ways: _Ways, pace: Pace) -> None:
        self._entries = ways.schedule.entries
        self._before = ways.before
        self._pace = pace
        self.begin()

    def begin(self) -> None:
        """Start again at zero."""
        self.now = 0.0
        self._free: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._over: dict[int, float] = {}

    def add(self, index: int) -> None:
        entry, over = self._entries[index], self._over
        lane = entry.device, _LANES[entry.kind]
        ready = self._free[lane]
        for one in self._before[index]:
            ready = max(ready, over.get(one, 0.0))
        over[index] = self._free[lane] = ready + _seconds(entry, self._pace)
        self.now = max(self.now, over[index])


#: The lane of each kind of entry on its device.
_LANES = {Kind.OPERATION: 0, Kind.COPY: 0, Kind.UPLOAD: 1, Kind.DOWNLOAD: 2, Kind.FETCH: 2, Kind.PASS: 3}


def _seconds(entry: Scheduled, pace: Pace) -> float:
    """Return the seconds of an entry by itself, on the device."""
    if isinstance(entry.what, Operation):
        return pace.operation(entry.what.flops, _nbytes(entry))
    if entry.kind is Kind.COPY:
        return pace.operation(0, 2 * entry.nbytes)
    return entry.nbytes / pace.link_per_s + pace.operation_s


def _nbytes(entry: Scheduled) -> int:
    """Return the bytes that an entry reads or writes."""
    return sum(tile.nbytes for tile in entry.what.operands) if isinstance(entry.what, Operation) else entry.nbytes


def _ends(ways: _Ways, pace: Pace) -> set[int]:
    """Return the device entries behind which pieces should end for the host, each the last that some aside needs.

    The host's work is divided into at most PARTS equal parts. A piece ends sooner if the device soon needs the result: within
    SHARE of the time until then. If that time is too short for a piece, the device waits for the host.
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
    """Return for each entry when the device is done with all entries so far, if all were one piece and asides took no time."""
    lanes, over = _Lanes(ways, pace), []
    for index, aside in enumerate(ways.aside):
        if not aside:
            lanes.add(index)
        over.append(lanes.now)
    return over


def _starts(ways: _Ways, ends: Collection[int], pace: Pace, most_s: float | None) -> Iterator[int]:
    """Yield the first entry of each piece.

    ends: the entries with which a piece should end. pace: estimates the time of entries. most_s: seconds after which a piece
    ends, None for no limit.
    """
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
    """Return the pieces that begin at the entries `starts`, and the asides."""
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
