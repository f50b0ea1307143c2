"""A GPU as a device: compute, upload and download streams over slots in its memory, behind RAM that the driver has pinned.

Covers what the engine asks of a device; ordering and landing are cuda_stream.py, memory is cuda_memory.py, calls into CUDA
are driver.py. All computing goes to one stream, so that equal programs give equal bits and one set of scratch serves all
kernels.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asynctile.device.base import GraphRecorder, Report, Workers
from asynctile.device.cuda_graph import CudaRecorder
from asynctile.device.cuda_memory import DeviceMemory, PinnedMap, PinnedMemory
from asynctile.device.cuda_stream import CudaStream
from asynctile.device.cuda_trace import GpuClock
from asynctile.device.driver import Driver
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

#: Kernels of operations that the host does.
ON_HOST = ("adamw", "adamw_bf16")
#: The loop that plans what stands where.
PLANNER = "asynctile.schedule.stays.walk"
#: Of a GPU's free memory, left to the driver, to the workspaces of cuBLAS and cuDNN, and to what rounding takes.
RESERVE_NBYTES = 768 << 20


class CudaDevice(DeviceMemory):
    """driver: the GPU. precision: "fp32", "tf32" or "bf16"; DeviceError if the GPU has no such arithmetic."""

    has_link = True
    grain = COARSE
    workers: Workers | None = None

    def __init__(self, driver: Driver, precision: str = "fp32") -> None:
        if precision != "fp32" and driver.capability < (8, 0):
            major, minor = driver.capability
            raise DeviceError(f"{driver.name} has no {precision} arithmetic (compute capability {major}.{minor}, 8.0 is the "
                              "first with it); choose precision 'fp32'")
        super().__init__(driver)
        self.name = driver.name
        self.precision = precision
        self.kernels: dict[str, Callable[..., None]] = dict(kernels.KERNELS)
        self.host = PinnedMemory(driver)
        self._lock = threading.Lock()
        self._clock = GpuClock(driver)
        self._compute = CudaStream("compute", driver, self._lock, self._clock)
        self._up = CudaStream("upload", driver, self._lock, self._clock)
        self._down = CudaStream("download", driver, self._lock, self._clock)
        self._copies = Stream("unpin", self._lock)
        # A core is left to the loop, and one to those who see work land.
        self._host = Stream("host", self._lock, max(1, len(os.sched_getaffinity(0)) - 2))
        self._others: list[Stream] = [self._copies, self._host]
        self._context = LaunchStream(driver, self._compute, precision)
        self._graphs = CudaRecorder(driver, self._compute, self._perform)
        self.recorder: GraphRecorder | None = self._graphs
        #: pinned RAM that nobody uses now, by size
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
            + ("end what else fills the GPU, or choose another device" if wanted is None else
               f"lower device_memory of {format_size(wanted)}, or end what else fills the GPU"),
            floor=max(room, 0),
        )

    def start(self) -> None:
        self._context.open(self.numbers(1))
        for stream in self.streams():
            stream.start()

    def warm(self, report: Report | None, stop: threading.Event | None = None) -> bool:
        if report:
            report("the CUDA kernels", 0, 1)
        self.driver.load(kernels.source())
        return cpu_kernels.warm(report, (*ON_HOST, PLANNER), stop)

    def numbers(self, count: int) -> np.ndarray:
        """float64 zeros (count,) in RAM that kernels can write."""
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
        """Enqueue it now: what it is given is written down."""
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
        # A copy to RAM that is not pinned would hold the caller until it is done: through pinned RAM, and on by a host thread.
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

    def add_stream(self, name: str, threads: int) -> Stream:
        stream = Stream(name, self._lock, threads)
        self._others.append(stream)
        return stream

    def stall_s(self) -> float:
        return math.nan if self._compute.trace is None else self._compute.stall_s

    def streams(self) -> list[TracedRunner]:
        return [self._compute, self._up, self._down, *self._others]

    def close(self, patience_s: float | None = None) -> None:
        # The host's streams first: what they have yet to do may wait for the GPU, and the GPU for them.
        for runner in reversed(self.streams()):
            runner.close(patience_s)
        self._clock.close()
        self._graphs.close()
        self._context.close()
        for stream in (self._compute, self._up, self._down):
            stream.destroy()
        self._closed = True
        self._pinned.clear()
        self.driver.close()

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
        if not self._closed:  # numbers may be let go after that: their RAM is not kept for anybody then
            self._pinned.setdefault(block.nbytes, []).append(block)


class LaunchStream:
    """A stream as launchers see it (kernels/cuda/context.py)."""

    scratch: Array
    arrived: Array

    def __init__(self, driver: Driver, stream: CudaStream, precision: str) -> None:
        self._driver = driver
        self._handle = stream.handle
        self.shared = driver.shared_nbytes
        self._precision = precision

    def open(self, zero: np.ndarray) -> None:
        """zero: a number in pinned RAM."""
        self._zero = zero  # the stream may read it later
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

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        self._driver.gemm(a, b, c, ta, tb, accumulate)

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        return self._driver.gemm_onto(a, b, c, ta, tb, source, bias)

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        return self._driver.attend(q, k, v, out, stats, seqs, heads)

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        return self._driver.attend_backward(q, k, v, out, dout, stats, dq, dk, dv, seqs, heads)

    def close(self) -> None:
        self._driver.close_libraries()
        if hasattr(self, "scratch"):
            self._driver.free(self.scratch.ptr)
        if hasattr(self, "arrived"):
            self._driver.free(self.arrived.ptr)
            del self._zero  # its RAM is unlocked while there is a driver


def arguments(operation: Operation, arrays: Sequence[Any], number: np.ndarray | None) -> tuple[Any, ...]:
    """Of a kernel, behind its context."""
    return (*arrays, *operation.params) if number is None else (*arrays, *operation.params, _array(number))


def _array(number: np.ndarray) -> Array:
    """A float64 that the host sees, as kernels see it: pinned RAM has one address for both."""
    return Array(number.ctypes.data, number.shape, number.dtype)
