"""The interface that a device offers to the engine: memory cut into slots, streams, and the work that runs on them.

Every call here enqueues work and returns an event. Only `close`, `warm` and `record` block. The caller decides the order: each
call names the events that must have succeeded (`waits`) and the events that must only be over (`after`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from asynctile.device.names import joined
from asynctile.program.grain import Grain
from asynctile.program.operation import Operation
from asynctile.schedule.schedule import Kind
from asynctile.storage.ground import Ground
from asynctile.storage.host import HostMemory
from asynctile.storage.pool import Pool
from asynctile.storage.slot import Slot
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents, TracedRunner
from asynctile.streams.stream import Stream

#: Called while kernels are compiled, with (kernel, number of kernels ready, number of kernels in all).
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Workers:
    """The compiled workers that can run a device's steps without Python.

    link_rate: bytes a second each way of the device's link to RAM, None for no limit. peer_rate: the same from other devices.
    """

    threads: int
    link_rate: float | None = None
    peer_rate: float | None = None


class Node(NamedTuple):
    """One piece of work in a graph.

    kind: any kind but TRANSFER. what: the operation, or the tile that is moved. arrays: the arrays of the operation's operands,
    or target and source of a move. number: view of `Device.numbers` for the value that the operation reports, or None. after:
    indices of earlier nodes of the graph that must be over first. device: number of the device that does the work.
    """

    kind: Kind
    what: Operation | Tile
    arrays: tuple[Any, ...]
    number: np.ndarray | None
    after: tuple[int, ...]
    device: int = 0


class GraphRecorder(Protocol):
    """A recorder that captures work as graphs, which run without Python. One records the work of all devices of an engine."""

    def record(self, nodes: Sequence[Node]) -> Any:
        """Return a graph of `nodes`, which can run any number of times on exactly these addresses.

        Blocks, and may be called from any thread. Raises the error of a kernel that cannot be captured, and DeviceError where
        the device cannot capture at all or has no room for the graph.
        """

    def replay(self, graph: Any, waits: StreamEvents = (), after: StreamEvents = (), what: object = None) -> StreamEvent:
        """Run a graph after all earlier graphs and launches. waits, after: as in the module. what: the graph, for messages."""

    def forget(self, graph: Any) -> None:
        """Release a graph that will not run again."""


class Device(Protocol):
    """The contract that every device passes (tests/device/test_contract.py).

    name: as given to Engine. has_link: there is a host tier below, and bytes must be uploaded before use. grain: how large the
    device's tiles should be. kernels: the functions that `launch` looks up by an operation's `kernel`, empty on a device that
    computes nothing. host: the RAM that copies go to and come from. workers: the compiled workers that can do its work, or
    None. recorder: captures the work of all devices of its engine as graphs, None on a device that has no graphs.
    """

    name: str
    has_link: bool
    grain: Grain
    kernels: dict[str, Callable[..., None]]
    workers: Workers | None
    recorder: GraphRecorder | None

    @property
    def host(self) -> HostMemory: ...

    def budget(self, wanted: int | None) -> int | None:
        """Return the cap on the device's own memory, None for no cap.

        wanted: the bytes asked for, None for all there is. Raises BudgetError if the device has less.
        """

    def start(self) -> None:
        ...

    def warm(self, report: Report | None, stop: threading.Event | None = None) -> bool:
        """Compile the kernels that would otherwise compile on first use. Blocks.

        Returns False soon after `stop` is set; the kernels that are ready by then stay ready. Raises DeviceError if the process
        that compiles was killed.
        """

    def map_pool(self, pool: Pool) -> None:
        """Back a pool with memory for the slots that it expects.

        Called again when the pool expects more slots.
        """

    def map_ground(self, ground: Ground) -> None:
        """Back the whole of a divided arena with memory, unless it already has some."""

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the device array over a slot."""

    def discard(self, slot: Slot) -> None:
        """Release the memory of a free slot, where the device can."""

    def numbers(self, count: int) -> np.ndarray:
        """Return float64 zeros (count,) that kernels can write and the host can read. `launch` takes views of them."""

    def launch(
        self, operation: Operation, arrays: Sequence[Any], number: Any, waits: StreamEvents, after: StreamEvents = ()
    ) -> StreamEvent:
        """Run an operation's kernel. number: view of `numbers` for the value that the operation reports, or None."""

    def launch_on_host(
        self, operation: Operation, arrays: Sequence[np.ndarray], number: Any, waits: StreamEvents,
        after: StreamEvents = (),
    ) -> StreamEvent:
        """Run the same kernel on the CPU, on host arrays, while the device runs other work. Every CPU gives the same bits."""

    def upload(
        self, target: Any, source: np.ndarray, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        """Copy a host array to a device array. what: the tile, for messages."""

    def download(
        self, target: np.ndarray, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        """Copy a device array to a host array. what: the tile, for messages.

        A host array that is smaller receives the first elements along each axis.
        """

    def receive(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        """Copy an array of another device of the engine to one of this device. what: the tile, for messages."""

    def copy(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        """Copy between arrays that do not overlap, within the device's memory or within RAM. what: the tile, for messages."""

    def add_stream(self, name: str, threads: int) -> Stream:
        """Return a new stream of host threads, not started.

        Its work can wait for events of the device, and the device's work for its events.
        """

    def stall_s(self) -> float:
        """Return the seconds in which operations waited for copies while nothing else ran, averaged over the parallel workers.

        nan while nobody measures that.
        """

    def streams(self) -> list[TracedRunner]:
        """Return all streams, for a trace."""

    def close(self, patience_s: float | None = None) -> None:
        """Run the enqueued work, then end the streams.

        patience_s: how long to wait for each stream. After that its threads are left behind.
        """


def streams_of(devices: Sequence[Device]) -> list[TracedRunner]:
    """Return the streams of all these devices, in order."""
    return [stream for device in devices for stream in device.streams()]


def name_of(devices: Sequence[Device]) -> str:
    """Return the name of all these devices together, such as "emulated*4"."""
    return joined([device.name for device in devices])


def address_of(array: Any) -> int:
    """Return the address at which a tile's memory begins, on the GPU or in RAM."""
    address: int = array.ctypes.data if hasattr(array, "ctypes") else array.ptr
    return address
