"""A device that computes and copies nothing, for a run without bytes (asynctile/measure/simulate.py).

Everything it enqueues is done at once, so the tiers above it decide as in a run and only the decisions remain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from asynctile.device.base import GraphRecorder, Report, Workers
from asynctile.program.grain import FINE, Grain
from asynctile.program.operation import Operation
from asynctile.storage.ground import Ground
from asynctile.storage.host import HostMemory
from asynctile.storage.pool import Pool
from asynctile.storage.slot import Slot
from asynctile.storage.spill import SpillTier
from asynctile.streams.event import StreamEvent, StreamEvents, TracedRunner
from asynctile.streams.stream import Stream

DONE = StreamEvent()
DONE.done = True


class DryMemory(HostMemory):
    """Slots without bytes."""

    def map_pool(self, pool: Pool) -> None:
        pass

    def map_ground(self, ground: Ground) -> None:
        pass

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        return None

    def discard(self, slot: Slot) -> None:
        pass


class DryStream:
    """Runs nothing."""

    def enqueue(self, *args: Any, **options: Any) -> StreamEvent:
        return DONE


class DryDevice(DryMemory):
    """The contract of device/base.py, dry. has_link, grain: as in the device that it stands for. copies: asked for so far."""

    def __init__(self, name: str, has_link: bool, grain: Grain = FINE) -> None:
        self.name = name
        self.has_link = has_link
        self.grain = grain
        self.copies = 0
        self.kernels: dict[str, Callable[..., None]] = {}
        self.workers: Workers | None = None
        self.recorder: GraphRecorder | None = None
        self.host: HostMemory = DryMemory()

    def budget(self, wanted: int | None) -> int | None:
        return wanted

    def start(self) -> None:
        pass

    def numbers(self, count: int) -> np.ndarray:
        return np.zeros(count)

    def warm(self, report: Report | None, stop: threading.Event | None = None) -> bool:
        return True

    def launch(
        self, operation: Operation, arrays: Sequence[Any], number: Any, waits: StreamEvents, after: StreamEvents = ()
    ) -> StreamEvent:
        return DONE

    def launch_on_host(
        self, operation: Operation, arrays: Sequence[np.ndarray], number: Any, waits: StreamEvents,
        after: StreamEvents = (),
    ) -> StreamEvent:
        return DONE

    def upload(
        self, target: Any, source: np.ndarray, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        self.copies += 1
        return DONE

    def download(
        self, target: np.ndarray, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        self.copies += 1
        return DONE

    def copy(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        self.copies += 1
        return DONE

    def add_stream(self, name: str, threads: int) -> Stream:
        return cast(Stream, DryStream())

    def stall_s(self) -> float:
        return 0.0

    def streams(self) -> list[TracedRunner]:
        return []

    def close(self, patience_s: float | None = None) -> None:
        pass


class DrySpill(SpillTier):
    """A spill folder without a file: places only."""

    def __init__(self, limit: int | None) -> None:
        super().__init__("(planned)", limit)

    @property
    def needed_nbytes(self) -> int:
        """Bytes of the file that reservations have asked for."""
        return self._blocks.end

    def _grow(self, nbytes: int) -> None:
        pass
