"""The virtual clock: when every entry of a schedule would begin and end, on a machine that need not be there.

A GPU computes one entry at a time, a device of several cores as many as it has cores. Each way of a link, the copies from other
devices, the disk, and the updates in RAM carry one entry at a time. Of the entries that may begin, a unit takes the earliest in
the schedule, as the workers of asynctile/execute/workers do. What comes behind the mark of the updates waits until the host
knows the loss. Nothing else takes time: no mutex, no wake-up. Pure arithmetic.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from asynctile.program.operation import HOST, NO_NUMBER, Operation
from asynctile.program.program import UPDATE
from asynctile.schedule.schedule import Kind, Schedule, Scheduled

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

    seconds: all of it. busy: seconds in which each unit worked. begins, ends, units: by entry. at_once: how many operations a
    device computes side by side.
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


def timeline(
    schedule: Schedule, seconds_of: Seconds, unit_of: Callable[[Scheduled], Unit] = unit_of, at_once: int = 1
) -> Timeline:
    """Return when each entry runs.

    seconds_of: of an entry by itself. unit_of: the unit that carries it. at_once: how many operations a device computes side by
    side.
    """
    clock = _Clock(schedule, seconds_of, [unit_of(entry) for entry in schedule.entries], at_once)
    return Timeline(clock.run(), dict(clock.busy), clock.begins, clock.ends, clock.units, at_once)


class _Clock:
    def __init__(self, schedule: Schedule, seconds_of: Seconds, units: list[Unit], at_once: int) -> None:
        self.units = units
        self.begins, self.ends = [0.0] * len(schedule), [0.0] * len(schedule)
        self.busy: dict[Unit, float] = defaultdict(float)
        self._entries, self._seconds_of = schedule.entries, seconds_of
        self._left = [len(entry.waits) + len(entry.after) for entry in schedule.entries]
        self._held, self._reporting = _held(schedule)
        self._ready: dict[Unit, list[int]] = {unit: [] for unit in self.units}
        self._free = {unit: at_once if unit.resource is Resource.COMPUTE else 1 for unit in self._ready}
        self._ends_at: list[tuple[float, int]] = []

    def run(self) -> float:
        """Run the schedule; return the seconds that it takes."""
        behind = _behind(self._entries)
        for number in range(len(self._entries)):
            self._let(number, 0.0)
        now = 0.0
        while self._ends_at:
            now, number = heapq.heappop(self._ends_at)
            self._free[self.units[number]] += 1
            self._take(self.units[number], now)
            for later in behind[number]:
                self._left[later] -= 1
                self._let(later, now)
            self._reporting.discard(number)
            if not self._reporting:
                released, self._held = self._held, set()
                for later in sorted(released):
                    self._let(later, now)
        return now

    def _let(self, number: int, now: float) -> None:
        """Let an entry begin, if nothing keeps it."""
        if self._left[number] == 0 and number not in self._held:
            heapq.heappush(self._ready[self.units[number]], number)
            self._take(self.units[number], now)

    def _take(self, unit: Unit, now: float) -> None:
        """Begin the earliest entry that may run on a free unit."""
        if not self._free[unit] or not self._ready[unit]:
            return
        number = heapq.heappop(self._ready[unit])
        spent = self._seconds_of(self._entries[number])
        self.begins[number], self.ends[number] = now, now + spent
        self.busy[unit] += spent
        self._free[unit] -= 1
        heapq.heappush(self._ends_at, (now + spent, number))


def _behind(entries: tuple[Scheduled, ...]) -> list[list[int]]:
    """Return, for each entry, those that wait for it."""
    behind: list[list[int]] = [[] for _ in entries]
    for number, entry in enumerate(entries):
        for earlier in (*entry.waits, *entry.after):
            behind[earlier].append(number)
    return behind


def _held(schedule: Schedule) -> tuple[set[int], set[int]]:
    """Return the entries that the host releases once it knows the loss, and those that report the loss."""
    if UPDATE not in schedule.marks:
        return set(), set()
    marks, entries = schedule.marks, schedule.entries
    held = {number for number, entry in enumerate(entries) if entry.stretch >= marks[UPDATE]}
    return held, {number for number, entry in enumerate(entries) if entry.stretch < marks["loss"] and _reports(entry)}


def _reports(entry: Scheduled) -> bool:
    return isinstance(entry.what, Operation) and entry.what.number not in (None, NO_NUMBER)
