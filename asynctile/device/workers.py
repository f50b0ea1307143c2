"""A device made of worker threads: compute streams that run the CPU kernels. The common part of cpu and emulated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from asynctile.device.base import Report
from asynctile.kernels import cpu as kernels
from asynctile.operation import Operation
from asynctile.storage.arena import Pool, Slot
from asynctile.storage.host import reserve, total_memory
from asynctile.stream import Event, Stream


class WorkerDevice:
    """Compute streams on threads, slots in anonymous memory. Kernels use one thread each; tiles are the parallelism."""

    name = "workers"
    has_link = False

    def __init__(self, lanes: int | None = None) -> None:
        self.lanes = lanes or len(os.sched_getaffinity(0))
        self.kernels = dict(kernels.KERNELS)
        self._compute = [Stream(f"compute-{index}") for index in range(self.lanes)]

    def warm(self, report: Report | None) -> None:
        kernels.warm(report)

    def map_pool(self, pool: Pool) -> None:
        count = pool.limit if pool.limit is not None else total_memory() // pool.slot_nbytes
        pool.memory = reserve(count * pool.slot_nbytes)

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        pool = slot.pool
        return np.ndarray(shape, dtype, pool.memory, slot.index * pool.slot_nbytes)

    def launch(
        self, lane: int, operation: Operation, arrays: Sequence[Any], number: Any, waits: Sequence[Event]
    ) -> Event:
        args = (*arrays, *operation.params) if number is None else (*arrays, *operation.params, number)
        return self._compute[lane].enqueue(waits, self.kernels[operation.kernel], args)

    def upload(self, target: Any, source: np.ndarray, waits: Sequence[Event]) -> Event:
        return self._compute[0].enqueue(waits, np.copyto, (target, source))

    def download(self, target: np.ndarray, source: Any, waits: Sequence[Event]) -> Event:
        return self._compute[0].enqueue(waits, np.copyto, (target, source))

    def frontier(self) -> list[Event]:
        return [stream.last for stream in self._compute if stream.last is not None and not stream.last.done]

    def stall_s(self) -> float:
        return sum(stream.waiting_s for stream in self._compute) / self.lanes

    def streams(self) -> list[Stream]:
        return self._compute

    def close(self) -> None:
        for stream in self.streams():
            stream.close()
