"""A driver that has done all work before it is asked, for the Driver of asynctile/device/driver.py: only the host works.

It counts its calls. Addresses on the device are mere numbers; nothing is copied or computed. The driver that behaves as a GPU
is in driver.py.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

MEMORY = 1 << 40


def counted(name: str) -> Callable[..., None]:
    """Return a method that only counts its calls."""

    def call(self: IdleDriver, *given: Any, **named: Any) -> None:
        self.calls[name] += 1

    return call


class IdleGraph(Counter[str]):
    """The number of a graph's nodes by the name of their call. Equal only to itself, because handles identify graphs."""

    __hash__ = object.__hash__


class IdleDriver:
    """One GPU of a TiB.

    calls: number of calls by name; of `bind` only calls in a thread that was not bound yet. captured: what was captured, in
    order, as nodes by the name of their call. A graph is a number, as a GPU's graph is: its place in `captured`, counted from
    1.
    """

    index = 0
    name = title = "cuda:0"
    capability = (9, 0)
    shared_nbytes = 227 << 10
    epilogues = attention = "idle"

    def __init__(self) -> None:
        # Raising a count that already exists is one step, whatever other threads do; a Counter may need several.
        self.calls = dict.fromkeys((name for name in vars(IdleDriver) if not name.startswith("_")), 0)
        self.captured: list[IdleGraph] = []
        self._numbers = itertools.count(1)
        self._address = 1 << 44
        self._bound = threading.local()
        #: streams that take part in a capture, events recorded on them, and the streams of products and of attention
        self._capturing: set[int] = set()
        self._marks: set[int] = set()
        self._products = self._attention = 0

    free, pin, unpin, reach = counted("free"), counted("pin"), counted("unpin"), counted("reach")
    destroy_stream, destroy_event = counted("destroy_stream"), counted("destroy_event")
    synchronize, load, close = counted("synchronize"), counted("load"), counted("close")
    launch_graph, destroy_graph = counted("launch_graph"), counted("destroy_graph")
    close_libraries = counted("close_libraries")

    def bind(self) -> None:
        if not getattr(self._bound, "done", False):
            self.calls["bind"] += 1
            self._bound.done = True

    def memory(self) -> tuple[int, int]:
        self.calls["memory"] += 1
        return MEMORY, MEMORY

    def malloc(self, nbytes: int) -> int:
        self.calls["malloc"] += 1
        address, self._address = self._address, self._address + -(-nbytes // 256) * 256
        return address

    def new_stream(self) -> int:
        self.calls["new_stream"] += 1
        return next(self._numbers)

    def new_event(self, *, timed: bool = False) -> int:
        self.calls["new_event"] += 1
        return next(self._numbers)

    def elapsed_s(self, start: int, end: int) -> float:
        self.calls["elapsed_s"] += 1
        return 0.0

    def record(self, event: int, stream: int) -> None:
        self.calls["record"] += 1
        if self._capturing:
            (self._marks.add if stream in self._capturing else self._marks.discard)(event)

    def wait(self, stream: int, event: int) -> None:
        self.calls["wait"] += 1
        if event in self._marks:
            self._capturing.add(stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.calls["copy"] += 1
        if stream in self._capturing:
            self.captured[-1]["copy"] += 1

    def launch(self, kernel: str, grid: tuple[int, ...], block: int, shared: int, params: int, stream: int) -> None:
        self.calls["launch"] += 1
        if stream in self._capturing:
            self.captured[-1]["launch"] += 1

    def open_gemm(self, stream: int, *, tf32: bool) -> None:
        self.calls["open_gemm"] += 1
        self._products = stream

    def gemm(self, *operands: Any) -> None:
        self.calls["gemm"] += 1
        if self._products in self._capturing:
            self.captured[-1]["gemm"] += 1

    def gemm_onto(self, *operands: Any) -> bool:
        self.calls["gemm_onto"] += 1
        if self._products in self._capturing:
            self.captured[-1]["gemm_onto"] += 1
        return True

    def open_attention(self, stream: int) -> None:
        self.calls["open_attention"] += 1
        self._attention = stream

    def attend(self, *operands: Any) -> bool:
        self.calls["attend"] += 1
        if self._attention in self._capturing:
            self.captured[-1]["attend"] += 1
        return True

    def attend_backward(self, *operands: Any) -> bool:
        self.calls["attend_backward"] += 1
        if self._attention in self._capturing:
            self.captured[-1]["attend_backward"] += 1
        return True

    def begin_capture(self, stream: int) -> None:
        self.calls["begin_capture"] += 1
        assert not self._capturing, "one capture at a time"
        self._capturing.add(stream)
        self.captured.append(IdleGraph())

    def end_capture(self, stream: int) -> int:
        self.calls["end_capture"] += 1
        self._capturing.clear()
        self._marks.clear()
        return len(self.captured)
