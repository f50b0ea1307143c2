"""Work of a GPU written down as CUDA graphs, by capturing streams.

A graph has three branches: all computing, in the order of its nodes, as it has one stream and one set of scratch otherwise;
copies to the GPU; copies from it. A node stands behind the one before it on its branch, and behind those of other branches
that it names, by an event between two streams, which in a graph is an edge and no work. What a kernel is given is read while
it is written down, so a graph runs on these very addresses.

What is in which graph is asynctile/schedule/pieces.py's, when each runs asynctile/replay/replayer.py's.
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
    """device/base.py's Recorder. compute: the stream of the device on which everything runs, graphs too.

    perform: enqueues an operation there, (operation, arrays, number), as it is launched by itself.
    """

    def __init__(
        self, driver: Driver, compute: CudaStream, perform: Callable[[Operation, Sequence[Any], Any], None]
    ) -> None:
        self._driver = driver
        self._compute = compute
        self._perform = perform
        #: one graph at a time: shares of an engine write down in threads of their own
        self._lock = threading.Lock()
        #: streams of the branches, the two others made for the first graph, and events between them
        self._streams = [compute.handle]
        #: by graph its last run
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
        if last is None or last.done:  # else it hangs, and may still be launched
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
        """What is enqueued within is written down; at the end the graph of it stands in the list.

        The library handles of a device belong to its compute stream, so that one is captured, and others wait meanwhile.
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
                with suppress(Exception):  # what went wrong first is told
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
    """The branches of one graph, and the events between them. events: spare ones, to which more are added when wanted."""

    def __init__(self, driver: Driver, streams: Sequence[int], events: list[int]) -> None:
        self._driver = driver
        self._streams = streams
        self._events = events
        self._used = 0
        self._marks: dict[int, int] = {}
        self._begun = {COMPUTE}
        self._origin = self._record(COMPUTE)

    def order(self, branch: int, behind: Sequence[int]) -> None:
        """What comes next on `branch` stands behind these nodes, which are marked."""
        if branch not in self._begun:
            self._begun.add(branch)
            self._driver.wait(self._streams[branch], self._origin)
        for before in behind:
            self._driver.wait(self._streams[branch], self._marks[before])

    def mark(self, branch: int, index: int) -> None:
        """Others will stand behind node `index`, which was the last on `branch`."""
        self._marks[index] = self._record(branch)

    def join(self) -> None:
        """The graph is over when all its branches are."""
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
    """By node, those of other branches behind which it is put: none that it stands behind already, by its branch or another.

    branches: by node. after: by node, earlier nodes that must be over. Of each branch the last one says all.
    """
    found: list[list[int]] = []
    #: by node, of each branch the last node that it stands behind, itself included; by branch that of its last node
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
    """The nodes as they are best enqueued: a copy after the computing beside it, unless that waits for the copy.

    CUDA runs a graph on streams of its own: what was enqueued first behind a node stays on the stream of that, all else begins
    another, and there are few queues. behind: as `edges` found.
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
