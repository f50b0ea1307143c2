"""A driver on the CPU, for the Driver of asynctile/device/driver.py.

Streams are threads (stream.py), graphs are lists of work (graph.py), memory is RAM, kernels are those of build.py. Drivers of
several GPUs share a machine (node.py).

It behaves as a GPU does where that matters to its caller. Work runs behind the caller, in order only within a stream. An event
is a place in a stream. Arguments are read when a kernel is launched. Only its edges order a graph's nodes. After an error
everything fails. Memory starts as NaN.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from asynctile.device.cudnn import Cudnn
from asynctile.device.cudnn_kept import KeptCudnn
from asynctile.device.driver import OutOfMemory
from asynctile.errors import DeviceError
from asynctile.kernels.cuda import Array
from tests.cuda.build import SHARED, library
from tests.cuda.context import SoftContext
from tests.cuda.cudnn import SoftCudnn
from tests.cuda.graph import CudaError, SoftGraph
from tests.cuda.node import SoftNode
from tests.cuda.stream import SoftEvent, SoftStream


class SoftDriver:
    """One GPU on the CPU.

    nbytes: memory of the device. allocated: blocks in use, by address. streams: by handle. seed: shakes the streams' timing and
    the order within graphs. capability: as a GPU's. fuses: whether products add a bias before they store. attends: whether
    there is a cuDNN (cudnn.py), with a workspace of 1 MiB. error: the error of the device; every wait fails once it is set.
    launches, graphs: numbers of requests. index, node: the GPU's number and its machine, None for one of its own. title: as a
    GPU's. reached: the GPUs whose memory it reaches.
    """

    def __init__(
        self,
        nbytes: int = 1 << 30,
        seed: int | None = None,
        capability: tuple[int, int] = (9, 0),
        fuses: bool = True,
        attends: bool = False,
        index: int = 0,
        node: SoftNode | None = None,
        title: str = "cuda:0",
    ) -> None:
        self.index, self.name, self.title = index, f"cuda:{index}", title
        self.node = node or SoftNode()
        self.reached: list[int] = []
        self.capability = capability
        self.shared_nbytes = SHARED
        self.streams: dict[int, SoftStream] = {}
        self.epilogues = "NumPy"
        self._attention = "not tried yet"
        self.library = SoftCudnn(self.streams) if attends else None
        self._cudnn: Cudnn | None = None
        self.kept = KeptCudnn(self._load, 1 << 20)
        self.error: BaseException | None = None
        self.is_dead = False
        self.launches = self.graphs = 0
        self.nbytes = nbytes
        self._seed = seed
        self.allocated: dict[int, np.ndarray] = {}
        self.pinned: dict[int, int] = {}
        self.events: dict[int, SoftEvent] = {}
        #: begin and end of each block in use
        self._places: tuple[tuple[int, int], ...] = ()
        self._context = SoftContext(library(), fuses=fuses)
        self.node.add(self)

    @property
    def attention(self) -> str:
        return self._attention if self._cudnn is None else self._cudnn.words

    def bind(self) -> None:
        self.node.bind(self.index)

    def reach(self, other: SoftDriver) -> None:
        self.reached.append(other.index)

    def has(self, address: int) -> bool:
        """Return whether an address is in this GPU's memory."""
        return any(begin <= address < end for begin, end in self._places)

    def memory(self) -> tuple[int, int]:
        return self.nbytes - sum(block.nbytes for block in self.allocated.values()), self.nbytes

    def malloc(self, nbytes: int) -> int:
        if nbytes > self.memory()[0]:
            raise OutOfMemory(f"{nbytes} bytes")
        block = np.full(-(-nbytes // 64) * 64 + 64, 0xFF, np.uint8)
        address = -(-block.ctypes.data // 64) * 64
        self.allocated[address] = block
        self._places = tuple((at, at + one.nbytes) for at, one in self.allocated.items())
        return address

    def free(self, address: int) -> None:
        block = self.allocated.pop(address)
        self._places = tuple((at, at + one.nbytes) for at, one in self.allocated.items())
        for driver in self.node.drivers():  # CUDA waits for work that may still use it
            for stream in list(driver.streams.values()):
                stream.keep(block)

    def pin(self, address: int, nbytes: int) -> None:
        pages = range(address // 4096, -(-(address + nbytes) // 4096))
        for start, size in self.pinned.items():
            assert pages[0] >= -(-(start + size) // 4096) or pages[-1] < start // 4096, "a page is pinned twice"
        self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def is_pinned(self, address: int) -> bool:
        return self.node.is_pinned(address)

    def new_stream(self) -> int:
        self.bind()
        handle = next(self.node.handles)
        self.streams[handle] = SoftStream(self, None if self._seed is None else self._seed + handle)
        return handle

    def destroy_stream(self, stream: int) -> None:
        self.streams.pop(stream).close()

    def new_event(self, *, timed: bool = False) -> int:
        self.bind()
        handle = next(self.node.handles)
        self.events[handle] = SoftEvent()
        self.events[handle].happened.set()  # an event that was never recorded stands for no work
        return handle

    def destroy_event(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        if event not in self.events or stream not in self.streams:
            raise CudaError("cudaErrorInvalidResourceHandle", "event and stream are not both of this GPU")
        # Recorded anew, the event is another place: waiters for the last one are not delayed.
        self.events[event] = self.streams[stream].record()

    def wait(self, stream: int, event: int) -> None:
        self.streams[stream].wait(self.node.event(event))

    def synchronize(self, event: int) -> None:
        self.events[event].check()
        self.events[event].happened.wait()
        if self.error is not None:
            raise self.error

    def elapsed_s(self, start: int, end: int) -> float:
        self.events[start].check()
        self.events[end].check()
        assert self.events[start].happened.is_set() and self.events[end].happened.is_set(), "not yet happened"
        return self.events[end].at - self.events[start].at

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        def moves() -> None:
            ctypes.memmove(target, source, nbytes)
            self.node.count_copy(target, source, nbytes)

        self.streams[stream].put(moves)

    def load(self, source: str) -> None:
        assert 'extern "C"' in source

    def launch(self, kernel: str, grid: tuple[int, ...], block: int, shared: int, params: int, stream: int) -> None:
        self.node.check_current(self.index)
        self.launches += 1
        taken = _taken(params)
        self.node.check_addresses(self.index, taken)
        self.streams[stream].put(
            lambda: self._context.library.run(kernel, grid, (block,), shared, ctypes.addressof(taken))
        )

    def open_gemm(self, stream: int, *, tf32: bool) -> None:
        self._gemm_stream = self.streams[stream]

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        self._check_call(a, b, c)
        self.launches += 1
        self._gemm_stream.put(lambda: self._context.gemm(a, b, c, ta, tb, accumulate))

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        self._check_call(a, b, c, source, bias)
        if self._context.fuses:
            self.launches += 1
            self._gemm_stream.put(lambda: self._context.gemm_onto(a, b, c, ta, tb, source, bias) and None)
        return self._context.fuses

    def open_attention(self, stream: int) -> None:
        self._cudnn, self._attention = self.kept.take(self, stream)

    def _load(self) -> SoftCudnn:
        if self.library is None:
            raise DeviceError("there is no cuDNN")
        return self.library

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        self._check_call(q, k, v, out, stats)
        return self._cudnn is not None and self._cudnn.attend(q, k, v, out, stats, seqs, heads)

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        operands = (q, k, v, out, dout, stats, dq, dk, dv)
        self._check_call(*operands)
        return self._cudnn is not None and self._cudnn.attend_backward(*operands, seqs, heads)

    def _check_call(self, *operands: Array | None) -> None:
        """Raise CudaError unless a library may be called now, on these operands."""
        self.node.check_current(self.index)
        self.node.check_addresses(self.index, [one.ptr for one in operands if one is not None])

    def die(self) -> None:
        """Fail every wait for the device, now or later, because it is gone; work that it was given does not run."""
        self.is_dead = True
        self.error = self.error or DeviceError("the device is gone")
        for event in list(self.events.values()):
            event.happened.set()

    def hold(self, gate: threading.Event, stream: int) -> None:
        """Keep a stream busy until `gate` is open."""
        self.streams[stream].put(lambda: gate.wait() and None)

    def begin_capture(self, stream: int) -> None:
        self.streams[stream].begin_capture()

    def end_capture(self, stream: int) -> SoftGraph:
        return self.streams[stream].end_capture()

    def launch_graph(self, graph: SoftGraph, stream: int) -> None:
        _check(graph)
        self.graphs += 1
        self.streams[stream].put_graph(graph)

    def destroy_graph(self, graph: SoftGraph) -> None:
        _check(graph)
        graph.destroyed = True

    def close_libraries(self) -> None:
        if self._cudnn is not None:
            self.kept.give(self._cudnn, self)
            self._cudnn = None

    def close(self) -> None:
        """Do nothing: the makers of streams destroy them."""


def _check(graph: SoftGraph) -> None:
    """Raise CudaError for a graph that no longer exists; CUDA does not define what happens then."""
    if graph.destroyed:
        raise CudaError("cudaErrorInvalidValue", "the graph was destroyed before")


def _taken(params: int) -> Any:
    """Copy the arguments of a launch, as the driver does: pointers, then values of 8 bytes each."""
    count = (ctypes.c_uint64.from_address(params).value - params) // 8
    copy = (ctypes.c_uint64 * (2 * count)).from_buffer_copy(ctypes.string_at(params, 16 * count))
    for index in range(count):
        copy[index] = ctypes.addressof(copy) + 8 * (count + index)
    return copy
