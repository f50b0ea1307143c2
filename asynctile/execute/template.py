"""A template: everything about a schedule but its addresses, made once for its executor, however often the tiers are cut anew.

Coroutines need no more than the base class here. calls.py adds what compiled workers need, graph_template.py what
graphs need. bound.py says which slot each place is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asynctile.device.base import Device
from asynctile.memory.placed import Placed
from asynctile.schedule.schedule import DISK, RESULT, Arrays, Kind, Schedule, Scheduled

Kernels = Mapping[str, Callable[..., None]]
#: Indices among the counts of a device: of bytes written to the file, and of those sent to and received from other nodes. The
#: others are counted by kind. Number of its counts.
_WRITTEN, _SENT, _RECEIVED, _WAYS = range(len(Kind), len(Kind) + 4)


class Counts(NamedTuple):
    """Amounts of work: number of operations, and bytes moved.

    uploaded, downloaded: over the link of each device to RAM. passed: from one device to another.
    read, written: between RAM and the spill file. sent, received: between RAM and other nodes.
    fetched: results for the host.
    """

    operations: int
    uploaded: tuple[int, ...]
    downloaded: tuple[int, ...]
    passed: int
    read: int
    written: int
    sent: int
    received: int
    fetched: int


class Template:
    """A schedule and the places in memory that it uses, each once.

    kernels: all and only the kernels that it calls, as they were when it was made.
    played: whether it is for workers or graphs, and not for coroutines.
    """

    played = False

    def __init__(self, schedule: Schedule, kernels: Kernels) -> None:
        self.schedule = schedule
        self.kernels = dict(kernels)
        self.places = [place for place in dict.fromkeys(schedule.places()) if place.tier >= 0 or place.tier == RESULT]
        self._numbers: np.ndarray | None = None
        self._amounts = np.array([entry.nbytes if entry.kind is not Kind.OPERATION else 1 for entry in schedule.entries])
        self._ways = np.array([_way(entry) for entry in schedule.entries])
        self._devices = 1 + int(self._ways.max(initial=0)) // _WAYS
        self._totals = self._summed(self._amounts)

    def bound(self, arrays: Arrays, numbers: np.ndarray) -> Any:
        """Return the object that the template's executor runs: the schedule on these arrays."""
        return Placed(self.schedule, arrays, numbers)

    def numbers_on(self, device: Device) -> np.ndarray:
        """Return float64 zeros for the numbers that its kernels report, one more than the program has.

        The same array whenever the template is bound, since its address is recorded.
        """
        if self._numbers is None:
            self._numbers = device.numbers(len(self.schedule.program.numbers) + 1)
        return self._numbers

    def counts(self, ran: NDArray[np.bool_]) -> Counts:
        """Return the counts of the entries that ran. ran: (n,) bool."""
        return self._totals if ran.all() else self._summed(self._amounts * ran)

    def _summed(self, amounts: NDArray[np.int64]) -> Counts:
        found = np.bincount(self._ways, amounts, minlength=_WAYS * self._devices).astype(np.int64).reshape(-1, _WAYS)
        all_ways = found.sum(axis=0).tolist()
        return Counts(
            operations=all_ways[Kind.OPERATION],
            uploaded=tuple(found[:, Kind.UPLOAD].tolist()),
            downloaded=tuple(found[:, Kind.DOWNLOAD].tolist()),
            passed=all_ways[Kind.PASS],
            read=all_ways[Kind.TRANSFER],
            written=all_ways[_WRITTEN],
            sent=all_ways[_SENT],
            received=all_ways[_RECEIVED],
            fetched=all_ways[Kind.FETCH],
        )


def _way(entry: Scheduled) -> int:
    """Return the index at which an entry is counted: by its kind, each way of transfers apart, copies over a link by device."""
    if entry.node is not None:
        return _RECEIVED if entry.places[0].tier >= 0 else _SENT
    if entry.kind is Kind.UPLOAD or entry.kind is Kind.DOWNLOAD:
        return entry.kind + _WAYS * entry.device
    return _WRITTEN if entry.places[0].tier == DISK else entry.kind
