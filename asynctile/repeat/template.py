"""A schedule, all but the addresses: what is worked out once for who runs it, however often the tiers are cut anew.

Coroutines need no more than this. What workers need is calls.py, what becomes graphs graph_template.py; which slot a place is
bound.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asynctile.device.base import Device
from asynctile.memory.placed import Placed
from asynctile.schedule.schedule import DISK, Arrays, Kind, Schedule

Kernels = Mapping[str, Callable[..., None]]
#: Of what is counted: bytes written to the file. The others go by their kinds.
_WRITTEN = len(Kind)


class Counts(NamedTuple):
    """How many operations, and how many bytes over the link, between RAM and the file, and of results."""

    operations: int
    uploaded: int
    downloaded: int
    read: int
    written: int
    fetched: int


class Template:
    """schedule, and the places in memory that it uses, each once. kernels: all and only those that it calls, as they were.

    numbers: what its kernels report, float64 by the program's indices; made once, since its address is written down.
    played: whether it is for workers or graphs, and not for coroutines.
    """

    played = False

    def __init__(self, schedule: Schedule, kernels: Kernels) -> None:
        self.schedule = schedule
        self.kernels = dict(kernels)
        self.places = [place for place in dict.fromkeys(schedule.places()) if place.tier != DISK]
        self._numbers: np.ndarray | None = None
        self._amounts = np.array([entry.nbytes if entry.kind is not Kind.OPERATION else 1 for entry in schedule.entries])
        # By kind, but for transfers to the file, which are no reads.
        self._ways = np.array([_WRITTEN if entry.places[0].tier == DISK else entry.kind for entry in schedule.entries])
        self._totals = self._summed(self._amounts)

    def bound(self, arrays: Arrays, numbers: np.ndarray) -> Any:
        """What it is run as: the schedule on these arrays."""
        return Placed(self.schedule, arrays, numbers)

    def numbers_on(self, device: Device) -> np.ndarray:
        """float64 (n,), the same ones whenever it is bound."""
        if self._numbers is None:
            self._numbers = device.numbers(len(self.schedule.program.numbers) + 1)
        return self._numbers

    def counts(self, ran: NDArray[np.bool_]) -> Counts:
        """Of the entries that ran (n,)."""
        return self._totals if ran.all() else self._summed(self._amounts * ran)

    def _summed(self, amounts: NDArray[np.int64]) -> Counts:
        found = np.bincount(self._ways, amounts, minlength=len(Kind) + 1).astype(np.int64).tolist()
        ways = Kind.OPERATION, Kind.UPLOAD, Kind.DOWNLOAD, Kind.TRANSFER, _WRITTEN, Kind.FETCH
        return Counts(*(found[way] for way in ways))
