"""A driver on the CPU: streams are threads, memory is RAM, kernels are those of build.py. For asynctile/device/driver.py's
Driver.

It behaves as a GPU does where that matters to who drives it: work runs behind the caller, in order within a stream only; an
event is a place in a stream; arguments are read when a kernel is launched; after an error everything fails; memory starts as
NaN.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from asynctile.device.cudnn import Cudnn
from asynctile.device.cudnn_trial import try_cudnn
from asynctile.device.driver import OutOfMemory
from asynctile.errors import DeviceError
from asynctile.kernels.cuda import Array
from tests.cuda.build import library
from tests.cuda.context import SoftContext
from tests.cuda.cudnn import SoftCudnn


class SoftStream:
    """A thread that runs work in order. seed: pause a little at random between pieces of work, or None."""

    def __init__(self, driver: SoftDriver, seed: int | None) -> None:
        self.work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.captured: list[Callable[[], None]] | None = None
        self._driver = driver
        self._random = None if seed is None else random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        (self.work.put if self.captured is None else self.captured.append)(work)

    def close(self) -> None:
        self.work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self.work.get()) is not None:
            if self._random is not None and self._random.random() < 0.2:
                time.sleep(self._random.random() * 2e-3)
            try:
                work()
            except BaseException as error:
                self._driver.error = self._driver.error or error


class SoftEvent:
    """Happened as often as it was recorded, or not yet."""

    def __init__(self) -> None:
        self.happened = threading.Event()
        self.at = 0.0

    def happen(self) -> None:
        self.at = time.perf_counter()
        self.happened.set()


class SoftDriver:
    """nbytes: memory of the device. seed: shake the streams' timing. capability: as a GPU's. fuses: whether
    products add a bias on the way out. attends: whether there is a cuDNN (cudnn.py), with a workspace of 1 MiB.

    error: what failed on the device; everything that is waited for fails then. launches, graphs: how many were asked for.
    """

    def __init__(
        self,
        nbytes: int = 1 << 30,
        seed: int | None = None,
        capability: tuple[int, int] = (9, 0),
        fuses: bool = True,
        attends: bool = False,
    ) -> None:
        self.name = self.title = "cuda:0"
        self.capability = capability
        self._streams: dict[int, SoftStream] = {}
        self.epilogues = "NumPy"
        self._attention = "not tried yet"
        self.library = SoftCudnn(self._streams) if attends else None
        self._cudnn: Cudnn | None = None
        self.error: BaseException | None = None
        self.launches = self.graphs = 0
        self._nbytes = nbytes
        self._seed = seed
        self._allocated: dict[int, np.ndarray] = {}
        self.pinned: dict[int, int] = {}
        self._handles = itertools.count(1)
        self._events: dict[int, SoftEvent] = {}
        self._context = SoftContext(library(), fuses=fuses)

    @property
    def attention(self) -> str:
        return self._attention if self._cudnn is None else self._cudnn.words

    def bind(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self._nbytes - sum(block.nbytes for block in self._allocated.values()), self._nbytes

    def malloc(self, nbytes: int) -> int:
        if nbytes > self.memory()[0]:
            raise OutOfMemory(f"{nbytes} bytes")
        block = np.full(-(-nbytes // 64) * 64 + 64, 0xFF, np.uint8)
        address = -(-block.ctypes.data // 64) * 64
        self._allocated[address] = block
        return address

    def free(self, address: int) -> None:
        del self._allocated[address]

    def pin(self, address: int, nbytes: int) -> None:
        pages = range(address // 4096, -(-(address + nbytes) // 4096))
        for start, size in self.pinned.items():
            assert pages[0] >= -(-(start + size) // 4096) or pages[-1] < start // 4096, "a page is pinned twice"
        self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def new_stream(self) -> int:
        handle = next(self._handles)
        self._streams[handle] = SoftStream(self, None if self._seed is None else self._seed + handle)
        return handle

    def destroy_stream(self, stream: int) -> None:
        self._streams.pop(stream).close()

    def new_event(self, *, timed: bool = False) -> int:
        handle = next(self._handles)
        self._events[handle] = SoftEvent()
        return handle

    def destroy_event(self, event: int) -> None:
        del self._events[event]

    def record(self, event: int, stream: int) -> None:
        # Recorded anew it is another place: who waits for the last one is not held up.
        place = self._events[event] = SoftEvent()
        self._streams[stream].work.put(place.happen)

    def wait(self, stream: int, event: int) -> None:
        self._streams[stream].put(self._events[event].happened.wait)

    def synchronize(self, event: int) -> None:
        self._events[event].happened.wait()
        if self.error is not None:
            raise self.error

    def elapsed_s(self, start: int, end: int) -> float:
        assert self._events[start].happened.is_set() and self._events[end].happened.is_set(), "not yet happened"
        return self._events[end].at - self._events[start].at

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._streams[stream].put(lambda: ctypes.memmove(target, source, nbytes) and None)

    def load(self, source: str) -> None:
        assert 'extern "C"' in source

    def launch(self, kernel: str, grid: tuple[int, ...], block: int, shared: int, params: int, stream: int) -> None:
        self.launches += 1
        taken = _taken(params)
        self._streams[stream].put(
            lambda: self._context.library.run(kernel, grid, (block,), shared, ctypes.addressof(taken))
        )

    def open_gemm(self, stream: int, *, tf32: bool) -> None:
        self._gemm_stream = self._streams[stream]

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        self.launches += 1
        self._gemm_stream.put(lambda: self._context.gemm(a, b, c, ta, tb, accumulate))

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        if self._context.fuses:
            self.launches += 1
            self._gemm_stream.put(lambda: self._context.gemm_onto(a, b, c, ta, tb, source, bias) and None)
        return self._context.fuses

    def open_attention(self, stream: int) -> None:
        self._cudnn, self._attention = try_cudnn(self, stream, self._load, 1 << 20)

    def _load(self) -> SoftCudnn:
        if self.library is None:
            raise DeviceError("there is no cuDNN")
        return self.library

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        return self._cudnn is not None and self._cudnn.attend(q, k, v, out, stats, seqs, heads)

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        operands = (q, k, v, out, dout, stats, dq, dk, dv)
        return self._cudnn is not None and self._cudnn.attend_backward(*operands, seqs, heads)

    def hold(self, gate: threading.Event, stream: int) -> None:
        """Keep a stream busy until `gate` is open."""
        self._streams[stream].put(lambda: gate.wait() and None)

    def begin_capture(self, stream: int) -> None:
        self._streams[stream].captured = []

    def end_capture(self, stream: int) -> Any:
        captured, self._streams[stream].captured = self._streams[stream].captured, None
        return captured

    def launch_graph(self, graph: Any, stream: int) -> None:
        self.graphs += 1

        def run() -> None:
            for work in graph:
                work()

        self._streams[stream].put(run)

    def destroy_graph(self, graph: Any) -> None:
        graph.clear()

    def close(self) -> None:
        """Streams are destroyed by whoever made them."""
        if self._cudnn is not None:
            self._cudnn.close()
            self.free(self._cudnn.workspace)
            self._cudnn = None


def _taken(params: int) -> Any:
    """A copy of the arguments of a launch, as the driver takes it: pointers, then values of 8 bytes each."""
    count = (ctypes.c_uint64.from_address(params).value - params) // 8
    copy = (ctypes.c_uint64 * (2 * count)).from_buffer_copy(ctypes.string_at(params, 16 * count))
    for index in range(count):
        copy[index] = ctypes.addressof(copy) + 8 * (count + index)
    return copy
