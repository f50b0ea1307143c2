"""A schedule as graphs of a device: cut into pieces, and written down for the addresses that it has now.

What graphs are is asynctile/replay/recording.py's, how they are made the device's.
"""

from __future__ import annotations

import numpy as np

from asynctile.device.base import Device, address_of
from asynctile.program.operation import DEVICE, Operation
from asynctile.repeat.template import Kernels, Template
from asynctile.replay.recording import Graphs, Recording, items_of
from asynctile.schedule.pace import Pace
from asynctile.schedule.pieces import cut
from asynctile.schedule.schedule import Arrays, Schedule

#: Where several shares take turns no piece takes longer than this by rough rates: what runs is never broken off.
TURN_S = 4e-3
#: And elsewhere: what is within a graph ends unseen, and where nothing ends for long a watchdog speaks of a stall. Many a GPU
#: takes a hundred times as long as those rates say.
SEEN_S = 0.1


class GraphTemplate(Template):
    """device: which has a recorder. pace: by which pieces are cut. in_turns: whether others want turns beside it.

    Graphs are kept for one set of addresses, those used last: as long as nobody else has taken its slots a program that comes
    again has its graphs.
    """

    played = True

    def __init__(self, schedule: Schedule, kernels: Kernels, device: Device, pace: Pace, *, in_turns: bool) -> None:
        operations = [entry.what for entry in schedule.entries if isinstance(entry.what, Operation)]
        super().__init__(schedule, {one.kernel: kernels[one.kernel] for one in operations if one.device == DEVICE})
        self._device = device
        self._pieces = cut(schedule, pace, most_s=TURN_S if in_turns else SEEN_S)
        self._items = items_of(self._pieces)
        self._graphs: tuple[tuple[int, ...], Graphs] | None = None

    @property
    def nodes(self) -> int:
        """Of the graphs that are kept."""
        return 0 if self._graphs is None else self._graphs[1].nodes

    def forget_graphs(self) -> None:
        """They are made anew when it is bound again; it is bound no more."""
        if self._graphs is not None:
            self._graphs[1].forget()
        self._graphs = None

    def bound(self, arrays: Arrays, numbers: np.ndarray) -> Recording:
        addresses = tuple([address_of(arrays(place, (place.nbytes,), np.dtype(np.uint8))) for place in self.places])
        if self._graphs is None or self._graphs[0] != addresses:
            assert self._device.recorder is not None
            self.forget_graphs()
            self._graphs = addresses, Graphs(self._device.recorder)
        return Recording(self._pieces, self._items, self._graphs[1], arrays, numbers)
