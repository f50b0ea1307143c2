"""The seconds of each entry of a schedule, by the rates of a machine. Pure arithmetic for the virtual clock (virtual.py).

Where cores compute, they also make the copies, the transfers and the updates in RAM: these take time from the operations beside
them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from asynctile.measure.virtual import Resource, Timeline, Unit, timelines, unit_of
from asynctile.program.operation import HOST, Operation
from asynctile.schedule.rates import Rates
from asynctile.schedule.schedule import Kind, Schedule, Scheduled

#: The verb of cores that carry a tile to or from a file.
CARRY = "carry"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCosts:
    """What the entries of a schedule cost on one machine.

    rates: of one GPU and its host, or of all cores together. verbs: by kernel, its own rate on the same hardware, in FLOP/s if
    it multiplies matrices, else in bytes of its operands a second; the others take the rates of products and of memory. CARRY:
    what cores do for a file, in bytes a second; the file's own time comes on top.
    devices: how many there are. cores: how many cores compute; 0 for GPUs. passed_per_s: bytes a second from one device to
    another, None for the rate of a link. sent_per_s: bytes a second to other nodes, and from them.
    """

    rates: Rates
    devices: int = 1
    cores: int = 0
    passed_per_s: float | None = None
    sent_per_s: float = math.inf
    verbs: Mapping[str, float] = field(default_factory=dict)

    def timeline(self, schedule: Schedule) -> Timeline:
        """Return when each entry of a schedule runs."""
        return self.timelines([schedule])[0]

    def timelines(self, schedules: Sequence[Schedule]) -> list[Timeline]:
        """Return when each entry runs on each of several such machines, which are the nodes of a training."""
        if not self.cores:
            return timelines(schedules, [self.seconds] * len(schedules), unit_of)
        return timelines(schedules, list(map(self._beside_copies, schedules)), self._unit, self.at_once)

    @property
    def at_once(self) -> int:
        """How many operations a device computes side by side."""
        return max(1, self.cores // self.devices)

    def _unit(self, entry: Scheduled) -> Unit:
        """Return the unit of an entry where the cores of a device also update in RAM, unless several devices share that."""
        unit = unit_of(entry)
        return Unit(0, Resource.COMPUTE) if unit.resource is Resource.UPDATES and self.devices == 1 else unit

    def seconds(self, entry: Scheduled) -> float:
        """Return the seconds of an entry by itself."""
        if isinstance(entry.what, Operation):
            return self._operation(entry.what)
        rates, nbytes = self.rates, entry.nbytes
        if entry.kind is Kind.COPY:
            return 2 * nbytes / rates.memory_per_s + rates.operation_s
        if entry.node is not None:
            return nbytes / self.sent_per_s
        per_s = {Kind.UPLOAD: rates.up_per_s, Kind.PASS: self.passed_per_s or rates.up_per_s,
                 Kind.TRANSFER: rates.disk_per_s}.get(entry.kind, rates.down_per_s)  # fmt: skip
        return nbytes / per_s

    def _operation(self, operation: Operation) -> float:
        nbytes, rates = sum(tile.nbytes for tile in operation.tiles), self.rates
        if operation.device == HOST and not self.cores:
            return nbytes / rates.updated_per_s
        shared = self.at_once * self.devices if self.cores else 1  # the rates of cores are those of all of them
        own = self.verbs.get(operation.kernel)
        if own is not None:
            return shared * (operation.flops or nbytes) / own + rates.operation_s
        if operation.device == HOST:
            return shared * nbytes / rates.updated_per_s
        return shared * max(operation.flops / rates.flops_per_s, nbytes / rates.memory_per_s) + rates.operation_s

    def _beside_copies(self, schedule: Schedule) -> Callable[[Scheduled], float]:
        """Return the seconds of an entry where cores that compute also copy: operations last longer by the copies' share."""
        copied: Counter[bool] = Counter()
        for entry in schedule.entries:
            if unit_of(entry).resource not in (Resource.COMPUTE, Resource.UPDATES):
                copied[unit_of(entry).resource is Resource.DISK] += entry.nbytes
        # A file's bytes are at least copied by the system, and read once more for their checksum.
        carried_per_s = self.verbs.get(CARRY, self.rates.copied_per_s / 2)
        copying_s = (copied[False] / self.rates.copied_per_s + copied[True] / carried_per_s) * self.at_once * self.devices
        computing_s = 0.0
        for entry in schedule.entries:
            if isinstance(entry.what, Operation):
                if self._unit(entry).resource is Resource.UPDATES:
                    copying_s += self.seconds(entry)
                else:
                    computing_s += self.seconds(entry)
        drag = 1 + copying_s / computing_s if computing_s else 1.0
        return lambda entry: self.seconds(entry) * (drag if isinstance(entry.what, Operation) else 1)
