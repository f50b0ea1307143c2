"""The virtual clock: when every entry of a schedule would begin and end, on a machine that need not be there.

A GPU computes one entry at a time, a device of several cores as many as it has cores. Each way of a link, the copies from other
devices, the disk, and the updates in RAM carry one entry at a time. Of the entries that may begin, a unit takes the earliest in
the schedule, as the workers of asynctile/execute/workers do; a way to other nodes takes temporary tiles first, nearly as
asynctile/nodes/precedence.py does. What comes behind the mark of the updates waits until the host knows the loss. Nothing else
takes time: no mutex, no wake-up. Pure arithmetic.

One clock may run over all nodes of a training. Then a transfer needs both ends: it begins when the tile is there, its place is
free, and neither node sends or receives another tile that way. Between two nodes, transfers of temporary tiles go in the order
of their numbers, and so do those of persistent ones, as in asynctile/nodes/boxes.py. All nodes begin together, and update
nothing before the loss of all is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

from asynctile.errors import AsynctileError
from asynctile.program.operation import HOST, Operation
from asynctile.program.program import UPDATE
from asynctile.schedule.schedule import Kind, Schedule, Scheduled
from asynctile.storage.tile import Tile

#: Returns the seconds of an entry.
Seconds = Callable[[Scheduled], float]


class Resource(StrEnum):
    """What a step is busy with, in the words of a plan."""

    COMPUTE = "compute"
    UP = "the link up"
    DOWN = "the link down"
    PASSED = "the link from other devices"
    DISK = "the disk"
    SENT = "the way to other nodes"
    RECEIVED = "the way from other nodes"
    UPDATES = "updates in RAM"


class Unit(NamedTuple):
    """A part of the machine that carries entries. device: whose it is; 0 for the disk, the network and the updates in RAM."""

    device: int
    resource: Resource


_RESOURCES = {
    Kind.OPERATION: Resource.COMPUTE, Kind.COPY: Resource.COMPUTE, Kind.UPLOAD: Resource.UP, Kind.DOWNLOAD: Resource.DOWN,
    Kind.FETCH: Resource.DOWN, Kind.PASS: Resource.PASSED, Kind.TRANSFER: Resource.DISK,
}  # fmt: skip


def unit_of(entry: Scheduled) -> Unit:
    """Return the unit that carries an entry."""
    if isinstance(entry.what, Operation) and entry.what.device == HOST:
        return Unit(0, Resource.UPDATES)
    if entry.node is not None:
        return Unit(0, Resource.RECEIVED if entry.places[0].tier >= 0 else Resource.SENT)
    resource = _RESOURCES[entry.kind]
    return Unit(0 if resource is Resource.DISK else entry.device, resource)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One run of a schedule.

    seconds: all of it, on all nodes of the clock. busy: seconds in which each unit worked. begins, ends, units: by entry.
    at_once: how many operations a device computes side by side.
    """

    seconds: float
    busy: Mapping[Unit, float]
    begins: list[float]
    ends: list[float]
    units: list[Unit]
    at_once: int

    def shares(self) -> dict[str, float]:
        """Return, by resource, its busy share of all seconds on the device where it is busiest; the largest first."""
        shares: dict[str, float] = {}
        for unit, busy in self.busy.items():
            share = busy / self.seconds / (self.at_once if unit.resource is Resource.COMPUTE else 1)
            shares[unit.resource] = max(share, shares.get(unit.resource, 0.0))
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


def timelines(
    schedules: Sequence[Schedule], seconds_of: Sequence[Seconds], unit_of: Callable[[Scheduled], Unit] = unit_of,
    at_once: int = 1,
) -> list[Timeline]:  # fmt: skip
    """Return when each entry runs on each node, by one clock.

    schedules: by node; a single one never waits for others. seconds_of: by node, of an entry by itself. unit_of: the unit that
    carries it. at_once: how many operations a device computes side by side.

    A transfer takes as long as it does for the slower of both nodes. ValueError if nodes count other transfers between them.
    """
    clock = _Clock(schedules, seconds_of, [[unit_of(entry) for entry in schedule.entries] for schedule in schedules], at_once)
    seconds = clock.run()
    return [clock.of(node, seconds) for node in range(len(schedules))]


class _Clock:
    """One run of the schedules of all nodes, whose entries have one numbering, node by node.

    lanes: of each entry, the number of its node's unit. turns: its numbers, but persistent tiles go to other nodes behind
    all else. others: the other end of a transfer between two nodes, by either end. The receiving end is no task of its own:
    whatever waits for either end waits for the sending one.
    """

    def __init__(
        self, schedules: Sequence[Schedule], seconds_of: Sequence[Seconds], units: list[list[Unit]], at_once: int
    ) -> None:
        self.units, self.at_once = units, at_once
        self.firsts = [0, *accumulate(map(len, schedules))]
        self.entries = [entry for schedule in schedules for entry in schedule.entries]
        self.begins, self.ends = [0.0] * len(self.entries), [0.0] * len(self.entries)
        numbers: dict[tuple[int, Unit], int] = {}
        self.lanes = [numbers.setdefault((node, unit), len(numbers)) for node, own in enumerate(units) for unit in own]
        self.carriers = list(numbers)
        self.turns = [number + _yields(self.entries[number], self.carriers[lane][1]) * len(self.entries)
                      for number, lane in enumerate(self.lanes)]  # fmt: skip
        self.busy = [0.0] * len(numbers)
        self._seconds_of = [seconds_of[node] for node, _ in numbers]
        self._free = [at_once if unit.resource is Resource.COMPUTE else 1 for _, unit in numbers]
        self._ready: list[list[int]] = [[] for _ in numbers]
        self._ends_at: list[tuple[float, int]] = []
        pairs = _pairs(schedules, self.firsts) if len(schedules) > 1 else {}
        self.others = {end: other for pair in pairs.values() for end, other in (pair, pair[::-1])}
        self._tasks = {receiving: sending for sending, receiving in pairs.values()}
        self._left = [0] * len(self.entries)
        self._behind: list[list[int]] = [[] for _ in self.entries]
        for schedule, first in zip(schedules, self.firsts, strict=False):
            for number, entry in enumerate(schedule.entries, first):
                for earlier in (*entry.waits, *entry.after):
                    self._wait(number, first + earlier)
        for (way, (earlier, _)), (same, (later, _)) in pairwise(sorted(pairs.items())):
            if way[:3] == same[:3]:
                self._wait(later, earlier)
        self._held, self._reporting = set[int](), set[int]()
        for schedule, first in zip(schedules, self.firsts, strict=False):
            held, reporting = _held(schedule)
            self._held |= {self._tasks.get(first + number, first + number) for number in held}
            self._reporting |= {first + number for number in reporting}

    def run(self) -> float:
        """Run the schedules; return the seconds that they take."""
        self._let([number for number in range(len(self.entries)) if number not in self._tasks], 0.0)
        now = 0.0
        while self._ends_at:
            now, number = heapq.heappop(self._ends_at)
            ended = self._ends_of(number)
            for end in ended:
                self._free[self.lanes[end]] += 1
            for later in self._behind[number]:
                self._left[later] -= 1
            released = list(dict.fromkeys(self._behind[number]))  # both ends of a transfer may wait for this entry
            self._reporting.discard(number)
            if not self._reporting and self._held:
                released, self._held = [*released, *sorted(self._held.difference(released))], set()
            self._let(released, now, *(self.lanes[end] for end in ended))
        if any(self._left):
            raise AsynctileError("the nodes' schedules wait for each other in a circle; this is a bug in asynctile")
        return now

    def of(self, node: int, seconds: float) -> Timeline:
        """Return the run of one node."""
        own = slice(self.firsts[node], self.firsts[node + 1])
        busy = {unit: self.busy[lane] for lane, (at, unit) in enumerate(self.carriers) if at == node}
        return Timeline(seconds, busy, self.begins[own], self.ends[own], self.units[node], self.at_once)

    def _wait(self, number: int, earlier: int) -> None:
        """Let an entry wait for another one."""
        task = self._tasks.get(number, number)
        self._left[task] += 1
        self._behind[self._tasks.get(earlier, earlier)].append(task)

    def _ends_of(self, number: int) -> tuple[int, ...]:
        """Return an entry, and the other end of its transfer."""
        return (number, self.others[number]) if number in self.others else (number,)

    def _let(self, numbers: Iterable[int], now: float, *freed: int) -> None:
        """Let entries begin, if nothing keeps them, and whatever else waits for the lanes that were freed."""
        lanes = dict.fromkeys(freed)
        for number in numbers:
            if self._left[number] == 0 and number not in self._held:
                for end in self._ends_of(number):
                    heapq.heappush(self._ready[self.lanes[end]], self.turns[end])
                lanes[self.lanes[number]] = None
        for lane in lanes:
            while self._take(lane, now):
                pass

    def _take(self, lane: int, now: float) -> bool:
        """Begin the earliest entry that may run on a free unit; return whether there was one."""
        ready = self._ready[lane]
        if not self._free[lane] or not ready:
            return False
        number = ready[0] % len(self.entries)
        if number in self.others:
            numbers = (turn % len(self.entries) for turn in ready)
            both_free = [self.turns[end] for end in numbers if self._free[self.lanes[self.others[end]]]]
            if not both_free:
                return False
            number = min(both_free) % len(self.entries)
        ends = self._ends_of(number)
        spent = max(self._seconds_of[self.lanes[end]](self.entries[end]) for end in ends)
        for end in ends:
            self.begins[end], self.ends[end] = now, now + spent
            self.busy[self.lanes[end]] += spent
            self._free[self.lanes[end]] -= 1
            _drop(self._ready[self.lanes[end]], self.turns[end])
        heapq.heappush(self._ends_at, (now + spent, self._tasks.get(number, number)))
        return True


def _yields(entry: Scheduled, unit: Unit) -> bool:
    """Return whether an entry carries a persistent tile to or from another node."""
    return unit.resource in (Resource.SENT, Resource.RECEIVED) and isinstance(entry.what, Tile) and entry.what.persistent


def _drop(heap: list[int], turn: int) -> None:
    """Remove a turn from a heap, most often the least."""
    if heap[0] == turn:
        heapq.heappop(heap)
    else:
        heap.remove(turn)
        heapq.heapify(heap)


def _pairs(schedules: Sequence[Schedule], firsts: Sequence[int]) -> dict[tuple[int, int, bool, int], tuple[int, int]]:
    """Return the entries that send and receive each tile between two nodes: by source, target, kind of tile and index.

    firsts: the number of the first entry of each node.
    """
    sent: dict[tuple[int, int, bool, int], int] = {}
    received: dict[tuple[int, int, bool, int], int] = {}
    for node, (schedule, first) in enumerate(zip(schedules, firsts, strict=False)):
        for number, entry in enumerate(schedule.entries, first):
            if entry.kind is Kind.TRANSFER and entry.node is not None:
                (to, source), tile = entry.places, entry.what
                assert isinstance(tile, Tile)
                if to.tier >= 0:
                    received[entry.node, node, tile.persistent, source.index] = number
                else:
                    sent[node, entry.node, tile.persistent, to.index] = number
    if sent.keys() != received.keys():
        way = min(sent.keys() ^ received.keys())
        raise ValueError(f"only one node knows of transfer {way[3]} from node {way[0]} to node {way[1]}; give the schedules of "
                         "all nodes of one program")
    return {way: (number, received[way]) for way, number in sent.items()}


def _held(schedule: Schedule) -> tuple[set[int], set[int]]:
    """Return the entries that the host releases once it knows the loss, and those that report the loss."""
    if UPDATE not in schedule.marks:
        return set(), set()
    marks, entries = schedule.marks, schedule.entries
    held = {number for number, entry in enumerate(entries) if entry.stretch >= marks[UPDATE]}
    return held, {number for number, entry in enumerate(entries) if entry.stretch < marks["loss"] and entry.reports}
