"""What a device offers to the engine: memory cut into slots, streams, and the three things that run on them.

Everything here enqueues and returns an event; nothing blocks but `close`. Ordering is the caller's: each call names the
events it needs to have gone well (`waits`) and those that must only be over (`after`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

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

#: Called while kernels are compiled: (kernel, how many are ready, of how many).
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Workers:
    """Who can do a device's work in compiled code alone. Rates of its link: bytes a second, None for no limit."""

    threads: int
    up_rate: float | None = None
    down_rate: float | None = None


class Node(NamedTuple):
    """A piece of work in a graph. kind: any but TRANSFER. what: the operation, or the tile that is moved.

    arrays: of its operands; of a move, where to and where from. number: view of `Device.numbers` for what an operation reports,
    or None. after: earlier nodes of the graph that must be over, by their index.
    """

    kind: Kind
    what: Operation | Tile
    arrays: tuple[Any, ...]
    number: np.ndarray | None
    after: tuple[int, ...]


class GraphRecorder(Protocol):
    """Writes work down as graphs, which run without Python."""

    def record(self, nodes: Sequence[Node]) -> Any:
        """The graph of `nodes`, to be run as often as wanted on these very addresses. Blocks; from any thread.

        Raises what a kernel raises that cannot be written down, and DeviceError where the device has no way or room for it.
        """

    def replay(self, graph: Any, waits: StreamEvents = (), after: StreamEvents = (), what: object = None) -> StreamEvent:
        """Run a graph, behind those that were run before it and whatever `launch` was asked for. what: it is, for messages."""

    def forget(self, graph: Any) -> None:
        """It will not be run again."""


class Device(Protocol):
    """The contract that every device passes (tests/device/test_contract.py).

    name: as given to Engine. has_link: there is a host tier below, and bytes must be uploaded to be used. grain: how large
    its tiles should be. kernels: what `launch` finds by an operation's `kernel`; empty where nothing is computed. host: the RAM
    that its copies go to and come from. workers: who else can do its work, None if nobody can. recorder: who can write its work
    down as graphs, None if it has none.
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
        """The cap on its own memory where `wanted` bytes were asked for, None for all there is; BudgetError if it has less."""

    def start(self) -> None:
        """Start the streams."""

    def warm(self, report: Report | None, stop: threading.Event | None = None) -> bool:
        """Compile what is compiled on first use. Blocks; False soon after `stop` is set, with no more done than was.

        DeviceError if the process that compiles was killed.
        """

    def map_pool(self, pool: Pool) -> None:
        """Back a pool of slots with memory for those that are expected of it; called again when more are."""

    def map_ground(self, ground: Ground) -> None:
        """Back the whole of a divided arena with memory, if it has none yet."""

    def array(self, slot: Slot, shape: tuple[int, ...], dtype: Any) -> Any:
        """The device array over a slot."""

    def discard(self, slot: Slot) -> None:
        """Let the memory of a free slot go, where the device can."""

    def numbers(self, count: int) -> np.ndarray:
        """float64 zeros (count,) that kernels can write and the host can read; views of it are what `launch` takes."""

    def launch(
        self, operation: Operation, arrays: Sequence[Any], number: Any, waits: StreamEvents, after: StreamEvents = ()
    ) -> StreamEvent:
        """Run an operation's kernel; `number`: view of `numbers` for what it reports, or None."""

    def launch_on_host(
        self, operation: Operation, arrays: Sequence[np.ndarray], number: Any, waits: StreamEvents,
        after: StreamEvents = (),
    ) -> StreamEvent:
        """Run the same kernel on the CPU, on host arrays, beside what the device runs; the bits are those of every CPU."""

    def upload(
        self, target: Any, source: np.ndarray, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        """Host array to device array. what: the tile, for messages."""

    def download(
        self, target: np.ndarray, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        """Device array to host array, which may be smaller: then the first elements along each axis. what: the tile, for
        messages.
        """

    def copy(
        self, target: Any, source: Any, waits: StreamEvents, after: StreamEvents = (), what: object = None
    ) -> StreamEvent:
        """Within the device's memory, or within RAM: arrays that do not overlap. what: the tile, for messages."""

    def add_stream(self, name: str, threads: int) -> Stream:
        """A stream of host threads whose work can wait for events of the device, and the device's for its; not started."""

    def stall_s(self) -> float:
        """Seconds, averaged over what computes in parallel, in which operations waited for copies and nothing else ran; nan
        while nobody measures that.
        """

    def streams(self) -> list[TracedRunner]:
        """All streams, for a trace."""

    def close(self, patience_s: float | None = None) -> None:
        """Run what is enqueued, end the streams. patience_s: for each stream; then its threads are left to themselves."""


def address_of(array: Any) -> int:
    """Where the memory of a tile begins, on the GPU or in RAM."""
    address: int = array.ctypes.data if hasattr(array, "ctypes") else array.ptr
    return address
