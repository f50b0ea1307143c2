"""An emulated device with memory of its own: a separate mapping, and real copies over a link of a given rate.

For development, stress tests and CI. Its results equal those of `cpu` bit for bit. The difference is that tiles must be copied
in before use, by an upload and a download stream that run behind the host.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from asynctile.device.base import Workers
from asynctile.device.workers import Siblings, WorkerDevice
from asynctile.storage.limits import spare_memory
from asynctile.storage.tile import corner
from asynctile.streams.event import StreamEvent, StreamEvents, TracedRunner
from asynctile.streams.stream import Stream


class OneWay:
    """One direction of a link: a copy takes at least nbytes / rate seconds, including the copying itself."""

    def __init__(self, name: str, rate: int | None, lock: threading.Lock) -> None:
        self.rate = rate
        self.stream = Stream(name, lock)
        self._free_at = 0.0

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy, then sleep until the link would be done. Runs in the stream's thread."""
        np.copyto(target, source)
        if self.rate is None:
            return
        # Count from when the copy could begin, not from when a busy core let this thread run: a link has no such wait.
        self._free_at = max(self._free_at, self.stream.ready_at) + source.nbytes / self.rate
        rest = self._free_at - time.perf_counter()
        if rest > 0:
            time.sleep(rest)


class EmulatedDevice(WorkerDevice):
    """CPU kernels in a bounded arena, with an upload and a download link of `link_rate` bytes a second each.

    It receives `peer_rate` bytes a second from its siblings.
    """

    name = "emulated"
    has_link = True

    def __init__(
        self, link_rate: int | None = None, threads: int | None = None, siblings: Siblings | None = None, number: int = 0,
        peer_rate: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(threads, siblings, number)
        self._up = OneWay(self._called("upload"), link_rate, self._lock)
        self._down = OneWay(self._called("download"), link_rate, self._lock)
        self._peer = OneWay(self._called("peer"), peer_rate, self._lock)
        self.workers = Workers(self.threads, link_rate, peer_rate)

    def budget(self, wanted: int | None) -> int | None:
        """Return the cap that was asked for. By default all siblings get half of the RAM for tiles: below them is RAM, too."""
        return spare_memory() // 2 // self._siblings.count if wanted is None else wanted

    def upload(
        self, target: Any, source: np.ndarray, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        return self._up.stream.enqueue(waits, self._up.copy, (target, source), after=after, is_copy=True, what=what)

    def download(
        self, target: np.ndarray, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        corner_of = (target, corner(source, target.shape))
        return self._down.stream.enqueue(waits, self._down.copy, corner_of, after=after, is_copy=True, what=what)

    def receive(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        return self._peer.stream.enqueue(waits, self._peer.copy, (target, source), after=after, is_copy=True, what=what)

    def streams(self) -> list[TracedRunner]:
        links = [self._up, self._down, *[self._peer] * (self._siblings.count > 1)]
        return [*super().streams(), *(link.stream for link in links)]
