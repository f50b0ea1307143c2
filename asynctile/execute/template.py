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
from asynctile.schedule.schedule import DISK, Arrays, Kind, Schedule

Kernels = Mapping[str, Callable[..., None]]
#: Index of bytes written to the file among the counts; the others are counted by kind.
_WRITTEN = len(Kind)


class Counts(NamedTuple):
    """Amounts of work: number of operations, and bytes moved.

    uploaded, downloaded: over the link.
    read, written: between RAM and the spill file.
    fetched: results for the host.
    """

    operations: int
    uploaded: int
    downloaded: int
    read: int
    written: int
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
        self.places = [place for place in dict.fromkeys(schedule.places()) if place.tier != DISK]
        self._numbers: np.ndarray | None = None
        self._amounts = np.array([entry.nbytes if entry.kind is not Kind.OPERATION else 1 for entry in schedule.entries])
        # By kind, except that transfers to the file are writes.
        self._ways = np.array([_WRITTEN if entry.places[0].tier == DISK else entry.kind for entry in schedule.entries])
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
        found = np.bincount(self._ways, amounts, minlength=len(Kind) + 1).astype(np.int64).tolist()
        ways = Kind.OPERATION, Kind.UPLOAD, Kind.DOWNLOAD, Kind.TRANSFER, _WRITTEN, Kind.FETCH
        return Counts(*(found[way] for way in ways))
