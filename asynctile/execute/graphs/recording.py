"""A schedule as graphs: one graph for each of its pieces, at fixed addresses, and the work of the host between them.

asynctile/schedule/pieces.py cuts a schedule into pieces. A device's recorder makes the graphs (device/base.py), and
replayer.py runs them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asynctile.device.base import GraphRecorder, Node
from asynctile.memory.placed import Placed
from asynctile.program.operation import Operation
from asynctile.schedule.pieces import Aside, Piece, Pieces
from asynctile.schedule.schedule import Arrays, Scheduled


class Graphs:
    """The graphs of a schedule's pieces, in order.

    nodes: number of pieces of work in them, as they were asked for.
    forget: call it once the graphs are not run any more; otherwise they are freed with this object.
    """

    def __init__(self, recorder: GraphRecorder) -> None:
        self.recorder = recorder
        self.found: list[Any] = []
        self.nodes = 0
        self.forget = weakref.finalize(self, _forget, recorder, self.found)
        self.forget.atexit = False


class Item(NamedTuple):
    """A piece or an aside, handed over at once, and its stretch. reports: whether the host reads a number of it."""

    stretch: int
    what: Piece | Aside
    reports: bool

    @property
    def entries(self) -> tuple[int, ...]:
        """The entries that the piece or aside carries out."""
        return self.what.nodes if isinstance(self.what, Piece) else (self.what.entry,)


class Recording(Placed):
    """A schedule in pieces, ready to run as graphs on certain arrays.

    pieces: the pieces of the schedule.
    items: pieces and the asides between them, in the order of items_of.
    graphs: graphs of the pieces at these addresses; empty until `capture` has made them.
    arrays: returns the array at a place.
    numbers: float64, where kernels report numbers.
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
        """Whether all pieces have graphs."""
        return len(self.graphs.found) == len(self.pieces.pieces)

    def capture(self) -> None:
        """Have the missing graphs made. Raises the errors of the recorder.

        Blocks, about 20 us an entry, so call it in a thread.
        """
        graphs = self.graphs
        while not self.is_captured:
            nodes = self._nodes(self.pieces.pieces[len(graphs.found)])
            graphs.found.append(graphs.recorder.record(nodes))
            graphs.nodes += len(nodes)

    def entry(self, aside: Aside) -> Scheduled:
        """Return the entry of an aside."""
        return self.schedule.entries[aside.entry]

    def _nodes(self, piece: Piece) -> list[Node]:
        """Return the work of the devices in a piece, with its addresses."""
        entries = self.schedule.entries
        number_of = {entry: number for number, entry in enumerate(piece.nodes)}
        nodes = []
        for index in piece.nodes:
            entry = entries[index]
            after = tuple(number_of[before] for before in (*entry.waits, *entry.after) if before in number_of)
            number = self.number(entry.what) if isinstance(entry.what, Operation) else None
            nodes.append(Node(entry.kind, entry.what, self.operands_of(entry), number, after, entry.device))
        return nodes


def items_of(pieces: Pieces) -> tuple[Item, ...]:
    """Return pieces and asides in an order in which they can be handed over. Reads all entries, so call it in a thread.

    Each item comes after everything that it waits for. An aside comes right after the last piece that it waits for, but
    not before its own stretch.
    """
    entries, behind = pieces.schedule.entries, dict[int, int]()
    for aside in pieces.asides:  # in ascending order, and edges lead forward
        others = [behind[entry] for entry in (*aside.waits, *aside.after)]
        behind[aside.entry] = max(aside.behind, *others) if others else aside.behind
    found = list[Item]()

    def add(stretch: int, what: Piece | Aside) -> None:
        nodes = what.nodes if isinstance(what, Piece) else (what.entry,)
        found.append(Item(stretch, what, any(entries[node].reports for node in nodes)))

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
