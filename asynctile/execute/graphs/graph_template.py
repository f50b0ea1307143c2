"""A schedule as graphs of a device: cut into pieces, and recorded for its present addresses.

asynctile/execute/graphs/recording.py says what the graphs are; the device makes them.
"""

from __future__ import annotations

import numpy as np

from asynctile.device.base import Device, address_of
from asynctile.execute.graphs.recording import Graphs, Recording, items_of
from asynctile.execute.template import Kernels, Template
from asynctile.program.operation import DEVICE, Operation
from asynctile.schedule.pace import Pace
from asynctile.schedule.pieces import cut
from asynctile.schedule.schedule import Arrays, Schedule

#: While several shares take turns, no piece takes longer than this by rough rates, since a running piece is never interrupted.
TURN_S = 4e-3
#: The same limit for a single share: nobody sees work end within a graph, and the watchdog reports a stall when nothing ends
#: for long. Some GPUs take a hundred times as long as the rates say.
SEEN_S = 0.1


class GraphTemplate(Template):
    """A template for graphs on `device`, which has a recorder.

    pace: rates by which pieces are cut.
    in_turns: whether other shares take turns with it.

    Graphs are kept for one set of addresses, the last one used. So a program that comes again has its graphs as long as
    nobody else has taken its slots.
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
        """Number of nodes in the graphs that are kept."""
        return 0 if self._graphs is None else self._graphs[1].nodes

    def forget_graphs(self) -> None:
        """Free the graphs, when the template is not bound any more; the next `bound` makes them anew."""
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
