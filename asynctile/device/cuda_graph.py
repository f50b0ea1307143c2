"""CUDA graphs of the work of an engine's GPUs, made by capturing their streams.

A graph has four branches for each GPU: its computing, in the order of its nodes, because outside graphs too it has one stream
and one set of scratch; copies to the GPU; copies from it; copies from other GPUs. A node follows the node before it on its
branch, and the nodes of other branches that it names. An event between two streams makes such a link, also between streams of
two GPUs; in a graph it is an edge and costs no work. Kernel arguments are read during capture, so a graph runs on exactly these
addresses.

asynctile/schedule/pieces.py decides which work goes into which graph, and asynctile/execute/graphs when each graph runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from asynctile.device.base import Node, address_of
from asynctile.device.cuda_stream import CudaStream
from asynctile.device.driver import Driver
from asynctile.program.operation import Operation
from asynctile.schedule.schedule import Kind
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents

#: The lanes of a GPU. A branch is `number of the GPU * LANES + lane`, so COMPUTE is also a branch: that of the first GPU.
COMPUTE, UP, DOWN, PEER = range(4)
LANES = 4
LANE = {
    Kind.OPERATION: COMPUTE, Kind.COPY: COMPUTE, Kind.UPLOAD: UP, Kind.DOWNLOAD: DOWN, Kind.FETCH: DOWN, Kind.PASS: PEER,
}  # fmt: skip


class Captured(NamedTuple):
    """A GPU whose work is captured. compute: its stream on which all its computing runs.

    perform: called with (operation, arrays, number), enqueues an operation on `compute` as if it were launched by itself.
    """

    driver: Driver
    compute: CudaStream
    perform: Callable[[Operation, Sequence[Any], Any], None]


class CudaRecorder:
    """The GraphRecorder (device/base.py) of an engine's GPUs. Graphs are launched on the compute stream of the first."""

    def __init__(self) -> None:
        self._gpus: list[Captured] = []
        #: one capture at a time: the shares of an engine capture in threads of their own
        self._lock = threading.Lock()
        #: streams of the branches, of which a graph adds those that it is the first to need
        self._streams: dict[int, int] = {}
        #: spare events of each GPU, to link branches; and one of each GPU, to order launches
        self._events: list[list[int]] = []
        self._fences: list[int] = []
        #: the last run of each graph
        self._runs: dict[Any, StreamEvent] = {}

    def add(self, gpu: Captured) -> None:
        """Add the next GPU."""
        self._streams[len(self._gpus) * LANES + COMPUTE] = gpu.compute.handle
        self._gpus.append(gpu)
        self._events.append([])

    def record(self, nodes: Sequence[Node]) -> Any:
        branches = [node.device * LANES + LANE[node.kind] for node in nodes]
        with self._lock, self._captured(branches) as captured:
            self._write_down(nodes, branches)
        return captured[0]

    def replay(self, graph: Any, waits: StreamEvents = (), after: StreamEvents = (), what: object = None) -> StreamEvent:
        compute = self._gpus[0].compute
        event = compute.enqueue(waits, self._launch, (graph,), after=after, what=what, by_itself=True)
        self._runs[graph] = event
        return event

    def forget(self, graph: Any) -> None:
        last = self._runs.pop(graph, None)
        if last is None or last.done:  # otherwise it hangs, and may still be launched
            self._gpus[0].driver.destroy_graph(graph)

    def close(self) -> None:
        """Destroy the streams and events that graphs were made with, on all GPUs."""
        for branch, stream in self._streams.items():
            if branch % LANES != COMPUTE:
                self._gpus[branch // LANES].driver.destroy_stream(stream)
        for gpu, events in zip(self._gpus, self._events, strict=True):
            for event in events:
                gpu.driver.destroy_event(event)
        for gpu, fence in zip(self._gpus, self._fences, strict=False):
            gpu.driver.destroy_event(fence)
        self._streams, self._events, self._fences = {}, [[] for _ in self._gpus], []

    def _launch(self, graph: Any) -> None:
        """Launch a graph behind all computing that the GPUs have, and put their later computing behind it.

        The graph computes on all of them, with the scratch that their compute streams have.
        """
        first, *others = self._gpus
        if others and not self._fences:
            self._fences = [gpu.driver.new_event() for gpu in self._gpus]
            first.driver.bind()
        for gpu, fence in zip(others, self._fences[1:], strict=False):
            gpu.driver.record(fence, gpu.compute.handle)
            first.driver.wait(first.compute.handle, fence)
        first.driver.launch_graph(graph, first.compute.handle)
        for gpu in others:
            first.driver.record(self._fences[0], first.compute.handle)
            gpu.driver.wait(gpu.compute.handle, self._fences[0])

    @contextmanager
    def _captured(self, branches: Collection[int]) -> Iterator[list[Any]]:
        """Capture the work that is enqueued on these branches within the block. At the end the list contains the graph.

        A GPU's library handles belong to its compute stream, so this captures that very stream, and other work waits
        meanwhile.
        """
        graph, first = list[Any](), self._gpus[0]
        for branch in sorted(set(branches) - self._streams.keys()):
            self._streams[branch] = self._gpus[branch // LANES].driver.new_stream()
        with ExitStack() as held:
            for gpu in self._gpus:
                gpu.compute.hold()
                held.callback(gpu.compute.go_on)
            first.driver.bind()
            first.driver.begin_capture(first.compute.handle)
            try:
                yield graph
            except BaseException:
                with suppress(Exception):  # the first error is the one to report
                    first.driver.destroy_graph(first.driver.end_capture(first.compute.handle))
                raise
            graph.append(first.driver.end_capture(first.compute.handle))

    def _write_down(self, nodes: Sequence[Node], branches: Sequence[int]) -> None:
        behind = edges(branches, [node.after for node in nodes])
        awaited = {before for others in behind for before in others}
        forks = Forks([gpu.driver for gpu in self._gpus], self._streams, self._events)
        for index in order(branches, behind):
            branch = branches[index]
            forks.order(branch, behind[index])
            self._enqueue(nodes[index], self._streams[branch])
            if index in awaited:
                forks.mark(branch, index)
        forks.join()

    def _enqueue(self, node: Node, stream: int) -> None:
        gpu = self._gpus[node.device]
        gpu.driver.bind()
        if node.kind is Kind.OPERATION:
            assert isinstance(node.what, Operation)
            gpu.perform(node.what, node.arrays, node.number)
            return
        assert isinstance(node.what, Tile)
        target, source = node.arrays
        gpu.driver.copy(address_of(target), address_of(source), node.what.nbytes, stream)


class Forks:
    """The branches of one graph, and the events between them.

    drivers: of the GPUs. streams: of the branches. events: spare events of each GPU; `Forks` adds more when it needs them.
    """

    def __init__(self, drivers: Sequence[Driver], streams: Mapping[int, int], events: Sequence[list[int]]) -> None:
        self._drivers = drivers
        self._streams = streams
        self._events = events
        self._used = [0] * len(drivers)
        self._marks: dict[int, int] = {}
        self._begun = {COMPUTE}
        self._origin = self._record(COMPUTE)

    def order(self, branch: int, behind: Sequence[int]) -> None:
        """Put the next work on `branch` behind these nodes, all of which are marked."""
        if branch not in self._begun:
            self._begun.add(branch)
            self._wait(branch, self._origin)
        for before in behind:
            self._wait(branch, self._marks[before])

    def mark(self, branch: int, index: int) -> None:
        """Mark node `index`, the last on `branch`, because other nodes will follow it."""
        self._marks[index] = self._record(branch)

    def join(self) -> None:
        """End the graph only when all its branches have ended."""
        for branch in sorted(self._begun - {COMPUTE}):
            self._wait(COMPUTE, self._record(branch))

    def _wait(self, branch: int, event: int) -> None:
        self._drivers[branch // LANES].wait(self._streams[branch], event)

    def _record(self, branch: int) -> int:
        """Return an event of the branch's GPU, recorded there now."""
        number = branch // LANES
        driver, events = self._drivers[number], self._events[number]
        if self._used[number] == len(events):
            events.append(driver.new_event())
        event = events[self._used[number]]
        self._used[number] += 1
        driver.record(event, self._streams[branch])
        return event


def edges(branches: Sequence[int], after: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each node the nodes of other branches that need an edge to it.

    A node gets no edge from a node that it already follows through its own branch or another edge. Of each branch the last node
    implies all before it. branches: the branch of each node. after: for each node, the earlier nodes that must be over.
    """
    found: list[list[int]] = []
    #: for each node, the last node of each branch that it follows, itself included; for each branch, the same of its last node
    seen: list[list[int]] = []
    count = max(branches, default=0) + 1
    last = [[-1] * count for _ in range(count)]
    for index, (branch, others) in enumerate(zip(branches, after, strict=True)):
        mine, behind = list(last[branch]), list[int]()
        for before in sorted(others, reverse=True):
            if before > mine[branches[before]]:
                behind.append(before)
                mine = [max(pair) for pair in zip(mine, seen[before], strict=True)]
        mine[branch] = index
        seen.append(mine)
        last[branch] = mine
        found.append(behind)
    return found


def order(branches: Sequence[int], behind: Sequence[Sequence[int]]) -> list[int]:
    """Return the order in which to enqueue the nodes: a copy after the computing next to it, unless that waits for the copy.

    CUDA runs a graph on streams of its own. The first work enqueued after a node stays on that node's stream, every other
    starts another stream, and there are few hardware queues. behind: the result of `edges`.
    """
    found: list[int] = []
    copies: list[int] = []
    for index, branch in enumerate(branches):
        if branch % LANES != COMPUTE:
            copies.append(index)
            continue
        if not copies or copies[0] > max(behind[index], default=-1):
            found.append(index)
            found += copies
        else:
            found += copies
            found.append(index)
        copies = []
    return found + copies
