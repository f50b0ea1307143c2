"""A count of the graph calls to a GPU's driver: how many graphs are captured and launched, and how long the calls take.

For bench_replay.py, where the driver does nothing, and gpu_replay.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class WatchedGraphs:
    """A watch on a driver's graphs from now on. clock: measures its calls.

    captured: number of graphs. capture_s: seconds from the begin of each capture to its end, in all; instantiate_s: the part of
    them in the last call, which makes the graph ready to launch. launched: each launch, as the graph and the seconds in the
    call. taken_nbytes: device memory that `malloc` gave and `free` has not taken back.
    """

    def __init__(self, driver: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self.captured, self.capture_s, self.instantiate_s = 0, 0.0, 0.0
        self.launched: list[tuple[Any, float]] = []
        self.taken_nbytes = 0
        self._clock, self._began = clock, 0.0
        self._sizes: dict[int, int] = {}
        self._driver = driver
        self._inner = {name: getattr(driver, name) for name in
                       ("begin_capture", "end_capture", "launch_graph", "malloc", "free")}  # fmt: skip
        for name in self._inner:
            setattr(driver, name, getattr(self, name))

    def begin_capture(self, stream: int) -> None:
        self._began = self._clock()
        self._inner["begin_capture"](stream)

    def end_capture(self, stream: int) -> Any:
        began = self._clock()
        graph = self._inner["end_capture"](stream)
        now = self._clock()
        self.captured += 1
        self.instantiate_s += now - began
        self.capture_s += now - self._began
        return graph

    def launch_graph(self, graph: Any, stream: int) -> None:
        began = self._clock()
        self._inner["launch_graph"](graph, stream)
        self.launched.append((graph, self._clock() - began))

    def malloc(self, nbytes: int) -> int:
        address: int = self._inner["malloc"](nbytes)
        self._sizes[address] = nbytes
        self.taken_nbytes += nbytes
        return address

    def free(self, address: int) -> None:
        self._inner["free"](address)
        self.taken_nbytes -= self._sizes.pop(address, 0)
