"""The time that a schedule takes by arithmetic.

Each device computes one entry at a time, and each way of its link carries one copy at a time: of the entries that may begin,
the earliest in the schedule, as the workers of asynctile/execute/workers do. Nothing else takes time: no mutex, no wake-up, no
copy of memory.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asleep import Call, call_of

from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.program.program import UPDATE
from asynctile.schedule.schedule import Kind, Schedule, Scheduled

#: One lane of work: a device, and COMPUTE or the kind of a copy.
Lane = tuple[int, Kind]
COMPUTE = Kind.OPERATION


@dataclass
class Played:
    """One step. seconds: all of it. busy: seconds in which each lane worked. begins, ends: by entry. lanes: by entry."""

    seconds: float
    busy: Mapping[Lane, float]
    begins: list[float]
    ends: list[float]
    lanes: list[Lane]


def play(schedule: Schedule, seconds: Mapping[Call, float], rate: float, peer_rate: float) -> Played:
    """Play a schedule. seconds: of each call. rate: bytes a second of each way of a link to RAM. peer_rate: from other devices.
    """
    return _Play(schedule, seconds, rate, peer_rate).played()


@dataclass
class _Play:
    schedule: Schedule
    seconds: Mapping[Call, float]
    rate: float
    peer_rate: float
    free_at: dict[Lane, float] = field(default_factory=lambda: defaultdict(float))
    busy: dict[Lane, float] = field(default_factory=lambda: defaultdict(float))
    ready: dict[Lane, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends_at: list[tuple[float, int]] = field(default_factory=list)

    def played(self) -> Played:
        entries = self.schedule.entries
        self.lanes = [_lane(entry) for entry in entries]
        self.left = [len(entry.waits) + len(entry.after) for entry in entries]
        self.begins, self.ends = [0.0] * len(entries), [0.0] * len(entries)
        behind = defaultdict(list)
        for number, entry in enumerate(entries):
            for earlier in (*entry.waits, *entry.after):
                behind[earlier].append(number)
        self.held, self.reporting = self._held()
        for number in range(len(entries)):
            self._let(number)
        now = 0.0
        self._begin(now)
        while self.ends_at:
            now, number = heapq.heappop(self.ends_at)
            self.free_at[self.lanes[number]] = now
            for later in behind[number]:
                self.left[later] -= 1
                self._let(later)
            self.reporting.discard(number)
            if not self.reporting and self.held:
                released, self.held = self.held, set()
                for later in sorted(released):
                    self._let(later)
            self._begin(now)
        return Played(now, dict(self.busy), self.begins, self.ends, self.lanes)

    def _held(self) -> tuple[set[int], set[int]]:
        """Return the entries that the host releases once it knows the loss, and those that report the loss."""
        marks, entries = self.schedule.marks, self.schedule.entries
        held = {number for number, entry in enumerate(entries) if entry.stretch >= marks[UPDATE]}
        return held, {number for number, entry in enumerate(entries) if entry.stretch < marks["loss"] and _reports(entry.what)}

    def _let(self, number: int) -> None:
        if self.left[number] == 0 and number not in self.held:
            heapq.heappush(self.ready[self.lanes[number]], number)

    def _begin(self, now: float) -> None:
        for lane, waiting in self.ready.items():
            if waiting and self.free_at[lane] <= now:
                number = heapq.heappop(waiting)
                spent = self._spent(self.schedule.entries[number])
                self.begins[number], self.ends[number] = now, now + spent
                self.busy[lane] += spent
                self.free_at[lane] = float("inf")
                heapq.heappush(self.ends_at, (now + spent, number))

    def _spent(self, entry: Scheduled) -> float:
        if isinstance(entry.what, Operation):
            return self.seconds[call_of(entry.what)]
        if entry.kind is Kind.COPY:
            return 0.0
        return entry.nbytes / (self.peer_rate if entry.kind is Kind.PASS else self.rate)


def _lane(entry: Scheduled) -> Lane:
    kind = COMPUTE if entry.kind in (Kind.OPERATION, Kind.COPY) else entry.kind
    return entry.device, Kind.DOWNLOAD if kind is Kind.FETCH else kind


def _reports(what: Any) -> bool:
    return isinstance(what, Operation) and what.number not in (None, NO_NUMBER)
