"""The GPUs of one engine: what they share, and whether they are alike.

Work of one GPU reads what another has written, and CUDA orders the two without the host. So before work counts as landed, the
host asks every GPU for an error: the work may have read the results of failed work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from asynctile.device.cuda_graph import CudaRecorder
from asynctile.device.driver import Driver
from asynctile.errors import DeviceError
from asynctile.kernels import cuda as kernels


class Gpus:
    """The GPUs of one engine, `count` of them, which have one CUDA version, one process and one RAM.

    lock: of all their streams, whose tasks wait for one another. kernels: the functions that all of them call. recorder: makes
    graphs of the work of all.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.lock = threading.Lock()
        self.kernels: dict[str, Callable[..., None]] = dict(kernels.KERNELS)
        self.recorder = CudaRecorder()
        self._drivers: list[Driver] = []
        #: of each GPU that is not closed, an event that has happened: waiting for it raises the GPU's error, or nothing
        self._signs: dict[Driver, int] = {}
        self._asking = threading.Lock()

    def add(self, driver: Driver) -> None:
        """Add the next GPU, which reaches the memory of the others. DeviceError if it is of another kind than the first."""
        for other in self._drivers[:1]:
            if (driver.title, driver.capability) != (other.title, other.capability):
                raise DeviceError(f"{other.name} and {driver.name} are unlike GPUs, {_kind(other)} and {_kind(driver)}: name "
                                  "GPUs of one kind")
        for other in self._drivers:
            driver.reach(other)
            other.reach(driver)
        self._drivers.append(driver)
        if self.count > 1:
            self._signs[driver] = driver.new_event()

    def compare(self, driver: Driver) -> None:
        """Raise DeviceError if this GPU has opened other libraries than the first: equal work would have other bits there."""
        first = self._drivers[0]
        for mine, other in ((driver.epilogues, first.epilogues), (driver.attention, first.attention)):
            if _library(mine) != _library(other):
                raise DeviceError(f"{driver.name} and {first.name} compute with unlike libraries, {_library(mine)!r} and "
                                  f"{_library(other)!r}: leave one of them out")

    def check(self, driver: Driver) -> None:
        """Raise the error of a GPU other than this one, if work has failed there."""
        if self.count == 1:
            return
        with self._asking:
            for other, sign in self._signs.items():
                if other is not driver:
                    try:
                        other.synchronize(sign)
                    except Exception as error:
                        raise DeviceError(f"{other.name}: {error}") from error

    def remove(self, driver: Driver) -> None:
        """Ask this GPU no more: it is about to be closed."""
        with self._asking:
            sign = self._signs.pop(driver, None)
        if sign is not None:
            driver.bind()
            driver.destroy_event(sign)


def _kind(driver: Driver) -> str:
    major, minor = driver.capability
    return f"{driver.title} of compute capability {major}.{minor}"


def _library(words: str) -> str:
    """Return the part of a driver's description of a library that does not depend on the shapes seen so far."""
    return words.partition(", ")[0]
