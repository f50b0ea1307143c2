"""How long kernels, copies and launches take on a GPU, timed by its own events. calls.py times kernels on cores.

Calls of a kernel are captured as one graph, as steps run them, so the time that the host takes to launch does not count. Not
covered: work on several streams at once. The virtual clock supposes that streams do not slow each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle, islice

import numpy as np

from asynctile.device.base import Node
from asynctile.device.cuda import CudaDevice
from asynctile.kernels.cuda import Array
from asynctile.measure.calls import Call, call_of, operand
from asynctile.ops import fill
from asynctile.program.operation import Operation
from asynctile.schedule.schedule import Kind
from asynctile.storage.demand import align
from asynctile.storage.tile import Tile

#: Times that each piece of work is measured.
TRIES = 5
#: Calls of a kernel take their operands in turn from so many bytes, more than the caches of a GPU hold.
APART = 256 << 20
#: The fewest and the most calls in the graph of a kernel.
FEWEST, MOST = 8, 64
#: Calls of the smallest operation in a graph, and its tile's edge.
SMALLEST, EDGE = 256, 64
#: Bytes of one copy, and copies in one piece of work.
COPY_NBYTES, COPIES = 64 << 20, 8


class GpuTimes:
    """Times on one GPU. device: open and started, with its kernels loaded, and at work for nobody else."""

    def __init__(self, device: CudaDevice) -> None:
        assert device.recorder is not None
        self._device, self._driver, self._recorder = device, device.driver, device.recorder
        self._compute, self._up, self._down = (stream.handle for stream in device.gpu_streams()[:3])

    def calls_s(self, operations: Iterable[Operation]) -> dict[Call, float]:
        """Return the seconds of each kind of call among the operations. BudgetError if there is no room for operands."""
        different = {call_of(operation): operation for operation in operations}
        return {call: self._call_s(operation) for call, operation in different.items()}

    def operation_s(self) -> float:
        """Return the seconds of the smallest operation in a graph."""
        return self._small_s(SMALLEST)

    def graph_s(self) -> float:
        """Return the seconds that a graph takes beyond its operations."""
        return max(self._small_s(1) - self.operation_s(), 0.0)

    def up_per_s(self) -> float:
        """Return the bytes a second from pinned RAM to the GPU."""
        ram = self._pinned(COPY_NBYTES)
        with self._memory(COPY_NBYTES) as there:
            return self._copied_per_s(there, ram.ctypes.data, self._up)

    def down_per_s(self) -> float:
        """Return the bytes a second from the GPU to pinned RAM."""
        ram = self._pinned(COPY_NBYTES)
        with self._memory(COPY_NBYTES) as there:
            return self._copied_per_s(ram.ctypes.data, there, self._down)

    def memory_per_s(self) -> float:
        """Return the bytes a second that a copy within the GPU's memory reads and writes."""
        with self._memory(2 * COPY_NBYTES) as there:
            return 2 * self._copied_per_s(there, there + COPY_NBYTES, self._compute)

    def passed_per_s(self, other: CudaDevice) -> float:
        """Return the bytes a second from another GPU of the same engine to this one."""
        with self._memory(COPY_NBYTES) as here, _memory(other, COPY_NBYTES) as there:
            return self._copied_per_s(here, there, self._up)

    def _copied_per_s(self, target: int, source: int, stream: int) -> float:
        def copies() -> None:
            for _ in range(COPIES):
                self._driver.copy(target, source, COPY_NBYTES, stream)

        return COPIES * COPY_NBYTES / self._seconds(stream, copies)

    def _call_s(self, operation: Operation) -> float:
        alignment = self._device.grain.alignment
        nbytes = sum(align(tile.nbytes, alignment) for tile in operation.operands)
        count = min(1 + APART // nbytes, MOST)
        with self._memory(count * nbytes) as address:
            sets = [self._arrays(operation, address + nbytes * index) for index in range(count)]
            self._fill(sets)
            number = None if operation.number is None else self._device.numbers(1)
            # By itself first: libraries choose their algorithm for a shape at its first call, outside a graph.
            event = self._device.launch(operation, sets[0], number, ())
            self._wait()
            if event.error is not None:
                raise event.error
            return self._in_graph(operation, list(islice(cycle(sets), max(count, FEWEST))), number)

    def _small_s(self, calls: int) -> float:
        tile = Tile("probe", (EDGE, EDGE))
        with self._memory(tile.nbytes) as address:
            return self._in_graph(fill(tile, 1.0), [(Array(address, tile.shape, tile.dtype),)] * calls, None)

    def _in_graph(self, operation: Operation, sets: Sequence[tuple[Array, ...]], number: np.ndarray | None) -> float:
        """Return the seconds of a call in a graph of one call on each set of operands."""
        graph = self._recorder.record([Node(Kind.OPERATION, operation, arrays, number, ()) for arrays in sets])
        try:
            return self._seconds(self._compute, lambda: self._driver.launch_graph(graph, self._compute)) / len(sets)
        finally:
            self._recorder.forget(graph)

    def _seconds(self, stream: int, work: Callable[[], None]) -> float:
        """Return the median seconds of work that is enqueued on a stream, after a first time that does not count."""
        driver, spent = self._driver, []
        driver.bind()
        start, end = (driver.new_event(timed=True) for _ in range(2))
        try:
            for _ in range(1 + TRIES):
                driver.record(start, stream)
                work()
                driver.record(end, stream)
                driver.synchronize(end)
                spent.append(driver.elapsed_s(start, end))
        finally:
            driver.destroy_event(start)
            driver.destroy_event(end)
        return statistics.median(spent[1:])

    def _arrays(self, operation: Operation, address: int) -> tuple[Array, ...]:
        """Return the operands of an operation, one behind the other from `address`."""
        arrays = []
        for tile in operation.operands:
            arrays.append(Array(address, tile.shape, np.dtype(tile.dtype)))
            address += align(tile.nbytes, self._device.grain.alignment)
        return tuple(arrays)

    def _fill(self, sets: Sequence[tuple[Array, ...]]) -> None:
        """Fill sets of operands with numbers that calls may compute with."""
        self._driver.bind()
        for same in zip(*sets, strict=True):
            ram = self._pinned(same[0].nbytes)
            ram[:] = operand(same[0].shape, same[0].dtype).reshape(-1).view(np.uint8)
            for array in same:
                self._driver.copy(array.ptr, ram.ctypes.data, array.nbytes, self._compute)
            self._wait()

    def _wait(self) -> None:
        """Wait until the GPU has computed everything. Raises the error of work that failed there."""
        self._seconds(self._compute, lambda: None)

    def _pinned(self, nbytes: int) -> np.ndarray:
        """Return bytes of pinned RAM, which are freed with the array."""
        return np.ndarray((nbytes,), np.uint8, self._device.host.block(nbytes))

    def _memory(self, nbytes: int) -> AbstractContextManager[int]:
        return _memory(self._device, nbytes)


@contextmanager
def _memory(device: CudaDevice, nbytes: int) -> Iterator[int]:
    """Hold memory of a GPU; gives its address. BudgetError if the GPU has too little."""
    device.driver.bind()
    address = device.allocate(nbytes)
    try:
        yield address
    finally:
        device.driver.free(address)
