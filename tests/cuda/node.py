"""A machine with several GPUs on the CPU: what CUDA has once for all GPUs of a process. driver.py has one GPU.

Handles are numbers of the machine, a thread has one current GPU, and an address says which GPU it belongs to.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.cuda.graph import CudaError
from tests.cuda.stream import SoftEvent

if TYPE_CHECKING:
    from tests.cuda.driver import SoftDriver


class SoftNode:
    """The GPUs of a machine. handles: numbers for streams and events. passed_nbytes: bytes copied from one GPU to another."""

    def __init__(self) -> None:
        self.handles = itertools.count(1)
        self.passed_nbytes = 0
        self._drivers: weakref.WeakSet[SoftDriver] = weakref.WeakSet()
        self._thread = threading.local()

    def add(self, driver: SoftDriver) -> None:
        self._drivers.add(driver)

    def drivers(self) -> list[SoftDriver]:
        """Return the drivers of all GPUs; several of one GPU if several engines have it."""
        return list(self._drivers)

    def bind(self, index: int) -> None:
        self._thread.index = index

    def check_current(self, index: int) -> None:
        """Raise CudaError unless this GPU is current for the calling thread. The first one is, in a new thread."""
        current = self.current()
        if current != index:
            raise CudaError("cudaErrorInvalidResourceHandle", f"work for GPU {index} while GPU {current} is current")

    def current(self) -> int:
        """Return the GPU that is current for the calling thread."""
        return getattr(self._thread, "index", 0)

    def is_pinned(self, address: int, nbytes: int = 1) -> bool:
        """Return whether RAM is locked, from an address on for so many bytes."""
        blocks = [block for driver in self.drivers() for block in list(driver.pinned.items())]
        return any(begin <= address and address + nbytes <= begin + size for begin, size in blocks)

    def event(self, handle: int) -> SoftEvent:
        """Return an event of any GPU."""
        return next(driver.events[handle] for driver in self.drivers() if handle in driver.events)

    def owner(self, address: int) -> int | None:
        """Return the GPU whose memory begins at or before an address and ends behind it; None for RAM."""
        return next((driver.index for driver in self.drivers() if driver.has(address)), None)

    def check_addresses(self, index: int, addresses: Any) -> None:
        """Raise CudaError if one of these is in the memory of another GPU than this one: kernels use their own GPU's memory."""
        for other in self.drivers():
            if other.index != index and any(map(other.has, addresses)):
                said = f"a kernel of GPU {index} was given memory of GPU {other.index}"
                raise CudaError("cudaErrorIllegalAddress", said)

    def count_copy(self, target: int, source: int, nbytes: int) -> None:
        """Count a copy if it is one from a GPU to another."""
        ends = self.owner(target), self.owner(source)
        if None not in ends and ends[0] != ends[1]:
            self.passed_nbytes += nbytes


def opener(make: Callable[..., SoftDriver], node: SoftNode | None = None, **options: Any) -> Callable[[str], SoftDriver]:
    """Return a stand-in for asynctile's open_driver: it opens GPUs of one machine. make: SoftDriver. options: its options."""
    node = node or SoftNode()
    return lambda name: make(index=int(name.partition(":")[2] or 0), node=node, **options)
