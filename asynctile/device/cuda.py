"""A GPU as a device: compute, upload and download streams over slots in its memory, above RAM that the driver has pinned.

This file covers the engine's interface to a device. Ordering and landing are in cuda_stream.py, memory in cuda_memory.py, calls
into CUDA in driver.py. All computing goes to one stream, so that equal programs give equal bits and one set of scratch serves
all kernels. The GPUs of one engine are devices of their own, with a lock and a recorder in common (gpus.py).
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from asynctile.device.base import GraphRecorder, Report, Workers
from asynctile.device.cuda_graph import Captured
from asynctile.device.cuda_memory import DeviceMemory, PinnedMap, PinnedMemory
from asynctile.device.cuda_stream import CudaStream
from asynctile.device.cuda_trace import GpuClock
from asynctile.device.driver import Driver
from asynctile.device.gpus import Gpus
from asynctile.device.names import stream_name
from asynctile.errors import BudgetError, DeviceError
from asynctile.kernels import cpu as cpu_kernels
from asynctile.kernels import cuda as kernels
from asynctile.kernels.cuda import Array
from asynctile.program.grain import COARSE
from asynctile.program.operation import Operation
from asynctile.storage.sizes import format_size
from asynctile.storage.tile import corner
from asynctile.streams.event import StreamEvent, StreamEvents, TracedRunner
from asynctile.streams.stream import Stream

#: Kernels that may run on the host.
ON_HOST = ("adamw", "adamw_bf16")
#: The planner's main loop, compiled by Numba as well.
PLANNER = "asynctile.schedule.stays.walk"
#: Free GPU memory that tiles leave to the driver, to the workspaces of cuBLAS and cuDNN, and to rounding.
RESERVE_NBYTES = 768 << 20


class CudaDevice(DeviceMemory):
    """One GPU. driver: the GPU. precision: "fp32", "tf32" or "bf16".

    gpus: the GPUs of its engine, of which it is device `number`; None for one that is alone. DeviceError if the GPU does not
    support the precision, or is unlike the others.
    """

    has_link = True
    grain = COARSE
    workers: Workers | None = None

    def __init__(self, driver: Driver, precision: str = "fp32", gpus: Gpus | None = None, number: int = 0) -> None:
        if precision != "fp32" and driver.capability < (8, 0):
            major, minor = driver.capability
            raise DeviceError(f"{driver.name} has no {precision} arithmetic (its compute capability is {major}.{minor}, and it "
                              "needs at least 8.0); choose precision 'fp32'")
        super().__init__(driver)
        self._gpus = gpus = gpus or Gpus()
        self._number = number
        gpus.add(driver)
        self.name = driver.name
        self.precision = precision
        self.kernels = gpus.kernels
        self.host = PinnedMemory(driver)
        self._lock = gpus.lock
        self._clock = GpuClock(driver)
        self._compute, self._up, self._down = map(self._stream, ("compute", "upload", "download"))
        self._peer = self._stream("peer") if gpus.count > 1 else self._compute
        self._copies = Stream(self._called("unpin"), self._lock)
        # One core is left to the event loop, and one to the threads that see work land. The first GPU's threads do the host's
        # work of all.
        threads = 1 if number else max(1, len(os.sched_getaffinity(0)) - 2)
        self._host = Stream(self._called("host"), self._lock, threads)
        self._others: list[Stream] = [self._copies, self._host]
        self._context = LaunchStream(driver, self._compute, precision)
        gpus.recorder.add(Captured(driver, self._compute, self._perform))
        self.recorder: GraphRecorder | None = gpus.recorder
        #: spare pinned RAM, by size
        self._pinned: dict[int, list[PinnedMap]] = {}
        self._closed = False

    def budget(self, wanted: int | None) -> int:
        free, total = self.driver.memory()
        room = free - RESERVE_NBYTES
        if wanted is not None and wanted <= room:
            return wanted
        if wanted is None and room > 0:
            return room
        raise BudgetError(
            f"{self.name} has {format_size(max(room, 0))} for tiles: {format_size(free)} of its {format_size(total)} are free, "
            f"and {format_size(RESERVE_NBYTES)} are kept for the driver; "
            + ("end the other programs on the GPU, or choose another device" if wanted is None else
               f"lower device_memory (now {format_size(wanted)}), or end the other programs on the GPU"),
            floor=max(room, 0),
        )

    def start(self) -> None:
        self._context.open(self.numbers(1))
        self._gpus.compare(self.driver)
        for stream in self.streams():
            stream.start()

    def warm(self, report: Report | None, stop: threading.Event | None = None) -> bool:
        if report:
            report("the CUDA kernels", 0, 1)
        self.driver.load(kernels.source())
        return cpu_kernels.warm(report, (*ON_HOST, PLANNER), stop)

    def numbers(self, count: int) -> np.ndarray:
        """Return float64 zeros (count,) in RAM that kernels can write."""
        block = self._take_pinned(count * 8)
        view = np.ndarray((count,), np.float64, block)
        view[:] = 0.0
        weakref.finalize(view, self._give_pinned, block).atexit = False
        return view

    def launch(
        self, operation: Operation, arrays: Sequence[Any], number: Any, waits: StreamEvents, after: StreamEvents = ()
    ) -> StreamEvent:
        args = self._context, *arguments(operation, arrays, number)
        return self._compute.enqueue(waits, self.kernels[operation.kernel], args, after=after, what=operation)

    def launch_on_host(
        self, operation: Operation, arrays: Sequence[np.ndarray], number: Any, waits: StreamEvents,
        after: StreamEvents = (),
    ) -> StreamEvent:
        args = (*arrays, *operation.params) if number is None else (*arrays, *operation.params, number)
        return self._host.enqueue(waits, cpu_kernels.KERNELS[operation.kernel], args, after=after, what=operation)

    def _perform(self, operation: Operation, arrays: Sequence[Any], number: np.ndarray | None) -> None:
        """Enqueue an operation at once, so that it is captured."""
        self.kernels[operation.kernel](self._context, *arguments(operation, arrays, number))

    def upload(
        self, target: Array, source: np.ndarray, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        args = (target.ptr, source.ctypes.data, target.nbytes, self._up.handle)
        return self._up.enqueue(waits, self.driver.copy, args, after=after, is_copy=True, what=what)

    def download(
        self, target: np.ndarray, source: Array, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        if isinstance(target.base, PinnedMap):
            return self._down_to(target, source, waits, after, what)
        # A copy to RAM that is not pinned would block the caller until it is done. So it goes to pinned RAM first, and a host
        # thread copies it on.
        block = self._take_pinned(source.nbytes)
        staged = np.ndarray(source.shape, source.dtype, block)
        landed = self._down_to(staged, source, waits, after, what)
        return self._copies.enqueue((landed,), self._unpin, (target, staged, block), is_copy=True, what=what)

    def copy(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        if isinstance(target, np.ndarray):
            return self._copies.enqueue(waits, np.copyto, (target, source), after=after, is_copy=True, what=what)
        args = (target.ptr, source.ptr, target.nbytes, self._compute.handle)
        return self._compute.enqueue(waits, self.driver.copy, args, after=after, what=what)

    def receive(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        args = (target.ptr, source.ptr, target.nbytes, self._peer.handle)
        return self._peer.enqueue(waits, self.driver.copy, args, after=after, is_copy=True, what=what)

    def add_stream(self, name: str, threads: int) -> Stream:
        stream = Stream(name, self._lock, threads)
        self._others.append(stream)
        return stream

    def stall_s(self) -> float:
        return math.nan if self._compute.trace is None else self._compute.stall_s

    def streams(self) -> list[TracedRunner]:
        return [*self.gpu_streams(), *self._others]

    def close(self, patience_s: float | None = None) -> None:
        # Close the host's streams first: their pending work may wait for the GPU, and the GPU for that work.
        for runner in reversed(self.streams()):
            runner.close(patience_s)
        self._clock.close()
        self._gpus.recorder.close()
        self._gpus.remove(self.driver)
        self._context.close()
        for stream in self.gpu_streams():
            stream.destroy()
        self._closed = True
        self._pinned.clear()
        self.driver.close()

    def _stream(self, name: str) -> CudaStream:
        """Return a new stream of this GPU."""
        check = partial(self._gpus.check, self.driver)
        return CudaStream(self._called(name), self.driver, self._lock, self._clock, check)

    def _called(self, stream: str) -> str:
        return stream_name(stream, self._number, self._gpus.count)

    def gpu_streams(self) -> list[CudaStream]:
        """Return its streams on the GPU: compute, upload, download and, if it has siblings, peer."""
        return [self._compute, self._up, self._down, *[self._peer] * (self._gpus.count > 1)]

    def _down_to(
        self, target: np.ndarray, source: Array, waits: StreamEvents, after: StreamEvents, what: object
    ) -> StreamEvent:
        args = (target.ctypes.data, source.ptr, source.nbytes, self._down.handle)
        return self._down.enqueue(waits, self.driver.copy, args, after=after, is_copy=True, what=what)

    def _unpin(self, target: np.ndarray, staged: np.ndarray, block: PinnedMap) -> None:
        np.copyto(target, corner(staged, target.shape))
        self._give_pinned(block)

    def _take_pinned(self, nbytes: int) -> PinnedMap:
        with self._lock:
            free = self._pinned.get(nbytes)
            if free:
                return free.pop()
        return self.host.block(nbytes)

    def _give_pinned(self, block: PinnedMap) -> None:
        if not self._closed:  # numbers may be released after close; their RAM is not kept then
            self._pinned.setdefault(block.nbytes, []).append(block)


class LaunchStream:
    """A compute stream as the launchers see it (kernels/cuda/context.py)."""

    scratch: Array
    arrived: Array

    def __init__(self, driver: Driver, stream: CudaStream, precision: str) -> None:
        self._driver = driver
        self._handle = stream.handle
        self.shared = driver.shared_nbytes
        self._precision = precision
        self.gemm, self.gemm_onto = driver.gemm, driver.gemm_onto
        self.attend, self.attend_backward = driver.attend, driver.attend_backward

    def open(self, zero: np.ndarray) -> None:
        """Open the libraries and allocate scratch. zero: a number in pinned RAM."""
        self._zero = zero  # kept alive: the stream may read it later
        self._driver.open_gemm(self._handle, tf32=self._precision == "tf32")
        if self._precision == "bf16":
            self._driver.open_attention(self._handle)
        address = self._driver.malloc(kernels.SCRATCH)
        self.scratch = Array(address, (kernels.SCRATCH // 8,), np.dtype(np.float64))
        self.arrived = Array(self._driver.malloc(zero.nbytes), zero.shape, zero.dtype)
        self._driver.copy(self.arrived.ptr, zero.ctypes.data, zero.nbytes, self._handle)

    def launch(
        self, kernel: str, grid: int | tuple[int, ...], block: int, *args: Array | bool | int | float, shared: int = 0
    ) -> None:
        packed = kernels.pack(args)
        shape = grid if isinstance(grid, tuple) else (grid,)
        self._driver.launch(kernel, shape, block, shared, packed.address, self._handle)

    def close(self) -> None:
        self._driver.close_libraries()
        if hasattr(self, "scratch"):
            self._driver.free(self.scratch.ptr)
        if hasattr(self, "arrived"):
            self._driver.free(self.arrived.ptr)
            del self._zero  # unlocks its RAM while there still is a driver


def arguments(operation: Operation, arrays: Sequence[Any], number: np.ndarray | None) -> tuple[Any, ...]:
    """Return a kernel's arguments after its context."""
    return (*arrays, *operation.params) if number is None else (*arrays, *operation.params, _array(number))


def _array(number: np.ndarray) -> Array:
    """Return a float64 that the host sees as kernels see it: pinned RAM has one address for both."""
    return Array(number.ctypes.data, number.shape, number.dtype)
