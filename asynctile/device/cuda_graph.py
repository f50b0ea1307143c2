"""CUDA graphs of a GPU's work, made by capturing streams.

A graph has three branches: all computing, in the order of its nodes, because outside graphs too it has one stream and one set
of scratch; copies to the GPU; copies from it. A node follows the node before it on its branch, and the nodes of other branches
that it names. An event between two streams makes such a link; in a graph it is an edge and costs no work. Kernel arguments are
read during capture, so a graph runs on exactly these addresses.

asynctile/schedule/pieces.py decides which work goes into which graph, and asynctile/execute/graphs when each graph runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from asynctile.device.base import Node, address_of
from asynctile.device.cuda_stream import CudaStream
from asynctile.device.driver import Driver
from asynctile.program.operation import Operation
from asynctile.schedule.schedule import Kind
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents

#: The branches.
COMPUTE, UP, DOWN = range(3)
BRANCH = {
    Kind.OPERATION: COMPUTE, Kind.COPY: COMPUTE, Kind.UPLOAD: UP, Kind.DOWNLOAD: DOWN, Kind.FETCH: DOWN,
}  # fmt: skip


class CudaRecorder:
    """The GraphRecorder (device/base.py) of a GPU. compute: the device's stream on which everything runs, graphs included.

    perform: called with (operation, arrays, number), enqueues an operation on `compute` as if it were launched by itself.
    """

    def __init__(
        self, driver: Driver, compute: CudaStream, perform: Callable[[Operation, Sequence[Any], Any], None]
    ) -> None:
        self._driver = driver
        self._compute = compute
        self._perform = perform
        #: one capture at a time: the shares of an engine capture in threads of their own
        self._lock = threading.Lock()
        #: streams of the branches, of which the first graph adds two, and events between them
        self._streams = [compute.handle]
        #: the last run of each graph
        self._runs: dict[Any, StreamEvent] = {}
        self._events: list[int] = []

    def record(self, nodes: Sequence[Node]) -> Any:
        with self._lock, self._captured() as captured:
            self._write_down(nodes)
        return captured[0]

    def replay(self, graph: Any, waits: StreamEvents = (), after: StreamEvents = (), what: object = None) -> StreamEvent:
        args = graph, self._compute.handle
        event = self._compute.enqueue(waits, self._driver.launch_graph, args, after=after, what=what, by_itself=True)
        self._runs[graph] = event
        return event

    def forget(self, graph: Any) -> None:
        last = self._runs.pop(graph, None)
        if last is None or last.done:  # otherwise it hangs, and may still be launched
            self._driver.destroy_graph(graph)

    def close(self) -> None:
        self._driver.bind()
        for stream in self._streams[1:]:
            self._driver.destroy_stream(stream)
        for event in self._events:
            self._driver.destroy_event(event)
        del self._streams[1:], self._events[:]

    @contextmanager
    def _captured(self) -> Iterator[list[Any]]:
        """Capture the work that is enqueued within the block. At the end the list contains the graph.

        A device's library handles belong to its compute stream, so this captures that very stream, and other work waits
        meanwhile.
        """
        driver, graph = self._driver, list[Any]()
        driver.bind()
        while len(self._streams) < len((COMPUTE, UP, DOWN)):
            self._streams.append(driver.new_stream())
        self._compute.hold()
        try:
            driver.begin_capture(self._compute.handle)
            try:
                yield graph
            except BaseException:
                with suppress(Exception):  # the first error is the one to report
                    driver.destroy_graph(driver.end_capture(self._compute.handle))
                raise
            graph.append(driver.end_capture(self._compute.handle))
        finally:
            self._compute.go_on()

    def _write_down(self, nodes: Sequence[Node]) -> None:
        branches = [BRANCH[node.kind] for node in nodes]
        behind = edges(branches, [node.after for node in nodes])
        awaited = {before for others in behind for before in others}
        forks = Forks(self._driver, self._streams, self._events)
        for index in order(branches, behind):
            branch = branches[index]
            forks.order(branch, behind[index])
            self._enqueue(nodes[index], self._streams[branch])
            if index in awaited:
                forks.mark(branch, index)
        forks.join()

    def _enqueue(self, node: Node, stream: int) -> None:
        if node.kind is Kind.OPERATION:
            assert isinstance(node.what, Operation)
            self._perform(node.what, node.arrays, node.number)
            return
        assert isinstance(node.what, Tile)
        target, source = node.arrays
        self._driver.copy(address_of(target), address_of(source), node.what.nbytes, stream)


class Forks:
    """The branches of one graph, and the events between them. events: spare events; `Forks` adds more when it needs them."""

    def __init__(self, driver: Driver, streams: Sequence[int], events: list[int]) -> None:
        self._driver = driver
        self._streams = streams
        self._events = events
        self._used = 0
        self._marks: dict[int, int] = {}
        self._begun = {COMPUTE}
        self._origin = self._record(COMPUTE)

    def order(self, branch: int, behind: Sequence[int]) -> None:
        """Put the next work on `branch` behind these nodes, all of which are marked."""
        if branch not in self._begun:
            self._begun.add(branch)
            self._driver.wait(self._streams[branch], self._origin)
        for before in behind:
            self._driver.wait(self._streams[branch], self._marks[before])

    def mark(self, branch: int, index: int) -> None:
        """Mark node `index`, the last on `branch`, because other nodes will follow it."""
        self._marks[index] = self._record(branch)

    def join(self) -> None:
        """End the graph only when all its branches have ended."""
        for branch in sorted(self._begun - {COMPUTE}):
            self._driver.wait(self._streams[COMPUTE], self._record(branch))

    def _record(self, branch: int) -> int:
        if self._used == len(self._events):
            self._events.append(self._driver.new_event())
        event = self._events[self._used]
        self._used += 1
        self._driver.record(event, self._streams[branch])
        return event


def edges(branches: Sequence[int], after: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each node the nodes of other branches that need an edge to it.

    A node gets no edge from a node that it already follows through its own branch or another edge. Of each branch the last node
    implies all before it. branches: the branch of each node. after: for each node, the earlier nodes that must be over.
    """
    found: list[list[int]] = []
    #: for each node, the last node of each branch that it follows, itself included; for each branch, the same of its last node
    seen: list[list[int]] = []
    last = [[-1, -1, -1] for _ in range(3)]
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
        if branch != COMPUTE:
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
