"""A schedule as graphs: those of its pieces at certain addresses, and what the host does beside them.

How a schedule is cut into pieces is asynctile/schedule/pieces.py's, how a graph is made a recorder's (device/base.py), and who
runs them replayer.py's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asynctile.device.base import GraphRecorder, Node
from asynctile.memory.placed import Placed
from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.schedule.pieces import Aside, Piece, Pieces
from asynctile.schedule.schedule import Arrays, Scheduled


class Graphs:
    """Those of the pieces of a schedule, in their order. nodes: how many pieces of work they hold, as they were asked for.

    forget: call it when they are not run any more; else they go with this.
    """

    def __init__(self, recorder: GraphRecorder) -> None:
        self.recorder = recorder
        self.found: list[Any] = []
        self.nodes = 0
        self.forget = weakref.finalize(self, _forget, recorder, self.found)
        self.forget.atexit = False


class Item(NamedTuple):
    """What is handed over at once, with its stretch. reports: whether the host is to learn a number of it."""

    stretch: int
    what: Piece | Aside
    reports: bool

    @property
    def entries(self) -> tuple[int, ...]:
        """What it does."""
        return self.what.nodes if isinstance(self.what, Piece) else (self.what.entry,)


class Recording(Placed):
    """pieces: of a schedule. items: those, and what is between them, by items_of. graphs: of the pieces, on these addresses;
    empty until `capture` has made them. arrays: at its places. numbers: float64, where its kernels report.
    """

    def __init__(
        self, pieces: Pieces, items: Sequence[Item], graphs: Graphs, arrays: Arrays, numbers: np.ndarray
    ) -> None:
        super().__init__(pieces.schedule, arrays, numbers)
        self.pieces = pieces
        self.items = items
        self.graphs = graphs

    @property
    def is_captured(self) -> bool:
        """Whether there are graphs of all pieces."""
        return len(self.graphs.found) == len(self.pieces.pieces)

    def capture(self) -> None:
        """Have the graphs made. Blocks; some 20 us an entry, so it belongs in a thread. Raises what a recorder raises."""
        graphs = self.graphs
        while not self.is_captured:
            nodes = self._nodes(self.pieces.pieces[len(graphs.found)])
            graphs.found.append(graphs.recorder.record(nodes))
            graphs.nodes += len(nodes)

    def entry(self, aside: Aside) -> Scheduled:
        """What it is."""
        return self.schedule.entries[aside.entry]

    def _nodes(self, piece: Piece) -> list[Node]:
        """What the device does of a piece, with its addresses."""
        entries = self.schedule.entries
        number_of = {entry: number for number, entry in enumerate(piece.nodes)}
        nodes = []
        for index in piece.nodes:
            entry = entries[index]
            after = tuple(number_of[before] for before in (*entry.waits, *entry.after) if before in number_of)
            number = self.number(entry.what) if isinstance(entry.what, Operation) else None
            nodes.append(Node(entry.kind, entry.what, self.operands_of(entry), number, after))
        return nodes


def items_of(pieces: Pieces) -> tuple[Item, ...]:
    """Pieces and asides, in an order in which they can be handed over: each behind all that it waits for, an aside right behind
    the piece that it waits for, but not before its stretch. Goes through all entries, so it belongs in a thread.
    """
    entries, behind = pieces.schedule.entries, dict[int, int]()
    for aside in pieces.asides:  # ascending, and edges lead forward
        others = [behind[entry] for entry in (*aside.waits, *aside.after)]
        behind[aside.entry] = max(aside.behind, *others) if others else aside.behind
    found = list[Item]()

    def add(stretch: int, what: Piece | Aside) -> None:
        whats = [entries[entry].what for entry in (what.nodes if isinstance(what, Piece) else (what.entry,))]
        reports = any(isinstance(one, Operation) and one.number not in (None, NO_NUMBER) for one in whats)
        found.append(Item(stretch, what, reports))

    for stretch in range(len(pieces.schedule.stretches)):
        own = [aside for aside in pieces.asides if entries[aside.entry].stretch == stretch]
        numbers = pieces.of(stretch)
        for aside in own:
            if behind[aside.entry] < numbers.start:
                add(stretch, aside)
        for number in numbers:
            add(stretch, pieces.pieces[number])
            for aside in own:
                if behind[aside.entry] == number:
                    add(stretch, aside)
    return tuple(found)


def _forget(recorder: GraphRecorder, graphs: list[Any]) -> None:
    for graph in graphs:
        recorder.forget(graph)
    graphs.clear()
