"""A device made of worker threads that run the CPU kernels: the common part of cpu and emulated."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from asynctile.device.base import GraphRecorder, Report, Workers
from asynctile.device.names import stream_name
from asynctile.kernels import cpu as kernels
from asynctile.program.grain import FINE
from asynctile.program.operation import Operation
from asynctile.storage.host import HostMemory
from asynctile.storage.tile import corner
from asynctile.streams.event import StreamEvent, StreamEvents, TracedRunner
from asynctile.streams.stream import Stream


class Siblings:
    """The devices of one engine, `count` of them, which share the cores of the machine.

    lock: of their streams, whose tasks wait for one another. kernels: the functions that all of them call.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.lock = threading.Lock()
        self.kernels = dict(kernels.KERNELS)

    @property
    def threads(self) -> int:
        """The threads of each device: its part of the cores, at least one."""
        return max(1, len(os.sched_getaffinity(0)) // self.count)


class WorkerDevice(HostMemory):
    """A compute stream with one thread per core, and slots in anonymous memory.

    Kernels are serial; tiles give the parallelism.
    siblings: the devices of its engine, of which it is device `number`. They divide the cores among them.
    """

    name = "workers"
    has_link = False
    grain = FINE

    def __init__(self, threads: int | None = None, siblings: Siblings | None = None, number: int = 0) -> None:
        self._siblings = siblings = siblings or Siblings()
        self._number = number
        self.threads = threads or siblings.threads
        self.kernels = siblings.kernels
        self._lock = siblings.lock
        self._compute = Stream(self._called("compute"), self._lock, self.threads)
        self._others: list[Stream] = []
        self.workers: Workers | None = Workers(self.threads)
        self.recorder: GraphRecorder | None = None
        self.host = HostMemory()

    def budget(self, wanted: int | None) -> int | None:
        return wanted

    def start(self) -> None:
        for stream in self.streams():
            stream.start()

    def warm(self, report: Report | None, stop: threading.Event | None = None) -> bool:
        return kernels.warm(report, stop=stop)

    def numbers(self, count: int) -> np.ndarray:
        return np.zeros(count)

    def launch(
        self, operation: Operation, arrays: Sequence[Any], number: Any, waits: StreamEvents, after: StreamEvents = ()
    ) -> StreamEvent:
        args = (*arrays, *operation.params) if number is None else (*arrays, *operation.params, number)
        return self._compute.enqueue(waits, self.kernels[operation.kernel], args, after=after, what=operation)

    def launch_on_host(
        self, operation: Operation, arrays: Sequence[np.ndarray], number: Any, waits: StreamEvents,
        after: StreamEvents = (),
    ) -> StreamEvent:
        return self.launch(operation, arrays, number, waits, after)  # the same cores

    def download(
        self, target: np.ndarray, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        corner_of = (target, corner(source, target.shape))
        return self._compute.enqueue(waits, np.copyto, corner_of, after=after, what=what)

    def copy(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        return self._compute.enqueue(waits, np.copyto, (target, source), after=after, what=what)

    upload = receive = copy  # an emulated device has links for these

    def add_stream(self, name: str, threads: int) -> Stream:
        stream = Stream(name, self._lock, threads)
        self._others.append(stream)
        return stream

    def stall_s(self) -> float:
        return self._compute.waiting_s / self.threads

    def streams(self) -> list[TracedRunner]:
        return [self._compute, *self._others]

    def _called(self, stream: str) -> str:
        return stream_name(stream, self._number, self._siblings.count)

    def close(self, patience_s: float | None = None) -> None:
        for stream in self.streams():
            stream.close(patience_s)
