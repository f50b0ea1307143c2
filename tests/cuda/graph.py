"""CUDA's stream capture on the CPU: work captured on streams that wait for each other becomes a graph.

Covers what may be captured, what CUDA refuses, and in which orders a graph may run. The streams are in stream.py; driver.py
offers the calls.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: Status numbers of the CUDA runtime, which cupy calls `status`.
STATUS = {
    "cudaErrorInvalidValue": 1, "cudaErrorInvalidResourceHandle": 400, "cudaErrorIllegalState": 401,
    "cudaErrorIllegalAddress": 700, "cudaErrorStreamCaptureInvalidated": 901,
    "cudaErrorStreamCaptureMerge": 902, "cudaErrorStreamCaptureUnmatched": 903, "cudaErrorStreamCaptureUnjoined": 904,
    "cudaErrorStreamCaptureIsolation": 905, "cudaErrorCapturedEvent": 907,
}  # fmt: skip
#: The longest pause of a graph between two nodes, in seconds.
PAUSE_S = 1e-3


class CudaError(RuntimeError):
    """An error as CuPy raises it. status: its number in the CUDA runtime."""

    def __init__(self, name: str, said: str) -> None:
        super().__init__(f"{name}: {said}")
        self.status = STATUS[name]


class Node(NamedTuple):
    """A piece of work of a graph. branch: number of the stream that it was captured on. after: earlier nodes."""

    work: Callable[[], object]
    branch: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a captured stream: after these nodes, and after the joining of these branches."""

    nodes: frozenset[int]
    branches: frozenset[int]

    def with_(self, other: Mark) -> Mark:
        return Mark(self.nodes | other.nodes, self.branches | other.branches)


class Capture:
    """A graph during its capture. over: it has ended, and no stream takes part any more.

    After a mistake every call but the end is refused, and the end fails.
    """

    def __init__(self) -> None:
        self.over = False
        self._broken = False
        self._nodes: list[Node] = []
        #: the place of each branch; the first branch is the origin
        self._marks: list[Mark] = []

    def enter(self, behind: Mark | None = None) -> int:
        """Let a stream take part from here; return the number of its branch. behind: the mark of the event it waited for."""
        self._check()
        branch = len(self._marks)
        own = Mark(frozenset(), frozenset((branch,)))
        self._marks.append(own if behind is None else own.with_(behind))
        return branch

    def add(self, branch: int, work: Callable[[], object]) -> None:
        self._check()
        mark = self._marks[branch]
        self._marks[branch] = Mark(frozenset((len(self._nodes),)), mark.branches)
        self._nodes.append(Node(work, branch, tuple(sorted(mark.nodes))))

    def mark(self, branch: int) -> Mark:
        """Return the branch's current place, as an event takes it."""
        self._check()
        return self._marks[branch]

    def wait(self, branch: int, mark: Mark) -> None:
        self._check()
        self._marks[branch] = self._marks[branch].with_(mark)

    def refuse(self, name: str, said: str) -> None:
        """Raise an error; an unfinished capture can then no longer end well."""
        self._broken = not self.over
        raise CudaError(name, said)

    def end(self) -> SoftGraph:
        self.over = True
        if self._broken:
            raise CudaError("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture")
        origin = self._marks[0]
        if len(needed(self._nodes, origin.nodes)) < len(self._nodes) or len(origin.branches) < len(self._marks):
            raise CudaError("cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work")
        return SoftGraph(tuple(self._nodes))

    def _check(self) -> None:
        if self._broken:
            raise CudaError("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture")


class SoftGraph:
    """A captured graph.

    nodes: in the order of their capture. destroyed: it must not be launched any more; earlier launches run on.
    """

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes
        self.destroyed = False
        self._runs = threading.Lock()  # a graph launched while it runs follows itself, on other streams too

    def run(self, seed: random.Random | None) -> None:
        """Run the whole graph; with a seed in another order each time, sometimes with pauses."""
        order = self.order(seed)
        pauses = set(seed.choices(order, k=3)) if order and seed is not None and seed.random() < 0.25 else ()
        with self._runs:
            for index in order:
                if seed is not None and index in pauses:
                    time.sleep(seed.random() * PAUSE_S)
                self.nodes[index].work()

    def order(self, seed: random.Random | None) -> list[int]:
        """Return the order of the nodes: as captured, or random within their edges if there is a seed.

        A random order runs one branch as far as it likes, then another, with no more of the other branches before a node than
        its edges demand. So where an edge is missing, work soon runs before the work it should have waited for, however far
        away that is.
        """
        if seed is None:
            return list(range(len(self.nodes)))
        left: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes):
            left.setdefault(node.branch, []).append(index)
        targets: list[int] = []
        while left:
            branch = seed.choice(list(left))
            rest = left.pop(branch)
            count = seed.randint(1, len(rest))
            targets += rest[:count]
            if rest[count:]:
                left[branch] = rest[count:]
        return needed(self.nodes, targets)


def needed(nodes: Iterable[Node], targets: Iterable[int]) -> list[int]:
    """Return these nodes in order, each after everything that it waits for, and nothing else."""
    nodes = tuple(nodes)
    order: dict[int, None] = {}
    for target in targets:
        stack = [target]
        while stack:
            waits = [before for before in nodes[stack[-1]].after if before not in order]
            if waits:
                stack += waits
            else:
                order[stack.pop()] = None
    return list(order)
