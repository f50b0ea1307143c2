"""The replayer: it runs the graphs of a recording piece by piece, and the work of the host between them.

A piece is one launch on the device's stream. An operation of the host, or a transfer, is work on a stream of the host
that waits for the event of a piece. All of it is handed over as soon as its stretch (the entries between two marks) is
released; then the device and the threads go on by themselves.

Graphs cannot skip work. After a failure the rest of the graph runs all the same, and entries that depend on the failed
one count as failed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from asynctile.device.base import Device
from asynctile.execute.graphs.recording import Item, Recording
from asynctile.execute.workers.places import FAILED, OK, PENDING, POISONED
from asynctile.program.operation import Operation
from asynctile.schedule.pieces import Aside, Piece
from asynctile.schedule.schedule import Kind
from asynctile.streams.event import PendingWork, StreamEvent, StreamEvents
from asynctile.streams.gate import Gate
from asynctile.streams.run_ahead import RunAhead

#: Most pieces that the device has at once while several shares take turns: one runs, one is ready.
AHEAD = 2


class Replayer:
    """Runs recordings on `device`, behind the same protocol as asynctile/execute/workers/player.py.

    gate, run_ahead: those of the share.
    is_shared: returns whether other shares take turns with this one.
    on_transfer: called with (entry, events that must be over); enqueues the transfer and returns its event.
    Everything but `transferred` is called on the event loop's thread.
    """

    name = "replayer"

    def __init__(self, device: Device, run_ahead: RunAhead, gate: Gate, is_shared: Callable[[], bool]) -> None:
        self.on_transfer: Callable[..., Any] | None = None
        self.stall_s = 0.0
        self._device = device
        self._run_ahead = run_ahead
        self._gate = gate
        self._is_shared = is_shared
        self._recording: Recording | None = None
        self._items: Sequence[Item] = ()
        #: statuses of a run without a failure
        self._all_well = np.empty(0, np.int8)
        #: events of the items handed over; of the asides among them, by entry
        self._events: list[StreamEvent] = []
        self._asides: dict[int, StreamEvent] = {}
        #: events of the pieces, in order; and the events that each piece waits for
        self._pieces: list[StreamEvent] = []
        self._behind: list[tuple[StreamEvent, ...]] = []
        self._released = 0

    def attach(self, recording: Recording) -> None:
        """Run this recording from now on. Its graphs have been captured."""
        assert recording.is_captured
        self._recording = recording
        self._items = recording.items
        self._all_well = np.full(len(recording.schedule), OK, np.int8)
        self._forget_run()

    def detach(self) -> None:
        """Hold nothing of a recording any more."""
        self._recording = None
        self._items = ()
        self._forget_run()

    def begin(self) -> None:
        """Begin a new run, with nothing released. RuntimeError if work of the last run is not over."""
        if not all(event.done for event in self._events):
            raise RuntimeError("a run was begun while the last one is still going on; wait for its end first")
        self._forget_run()

    def release(self, stretch: int) -> None:
        """Allow the pieces up to the end of this stretch to begin, once they are handed over."""
        self._released = max(self._released, stretch + 1)

    async def hand_over(self) -> None:
        """Hand everything that was released to the device and the streams of the host.

        Waits while another share has the turn.
        """
        while len(self._events) < len(self._items) and self._items[len(self._events)].stretch < self._released:
            if self._is_shared() and len(self._pieces) >= AHEAD:
                await self._run_ahead.settled(self._pieces[-AHEAD])
            await self._gate.opened()  # last, since the gate may have been shut meanwhile
            what = self._items[len(self._events)].what
            if isinstance(what, Piece):
                self._events.append(self._launch(what))
            else:
                self._asides[what.entry] = self._begin(what)
                self._events.append(self._asides[what.entry])

    def reported(self, stretch: int) -> Sequence[StreamEvent]:
        """Return the events after which the numbers of a stretch are there, or have failed.

        The events of asides that these pieces need are among them.
        """
        last = max((index for index, item in self._of(stretch) if item.reports), default=-1)
        found: dict[StreamEvent, None] = {}
        for index, item in self._of(stretch):
            if index <= last:
                found |= dict.fromkeys([self._events[index], *self._of_asides(item.what.after)])
        return list(found)

    def ended(self, stretch: int) -> Sequence[StreamEvent]:
        """Return the events of everything in a stretch."""
        return [self._events[index] for index, _ in self._of(stretch)]

    def failure(self, entry: int) -> BaseException | None:
        """Return the first error among the items handed over; None if all went well."""
        return next((event.error for event in self._events if event.error is not None), None)

    def transferred(self, entry: int, ok: bool) -> None:
        """Do nothing: the event of a transfer tells."""

    @property
    def statuses(self) -> np.ndarray:
        """Statuses of the entries of this run, (n,) int8: OK, FAILED or POISONED once over, else PENDING.

        POISONED entries read bytes of failed ones.
        """
        if len(self._events) == len(self._items) and all(event.done and event.error is None for event in self._events):
            return self._all_well
        found = np.full(len(self._all_well), PENDING, np.int8)
        for event, item in zip(self._events, self._items, strict=False):
            if event.done:
                found[list(item.entries)] = OK if event.error is None else FAILED
        if (found == FAILED).any():
            for index, entry in enumerate(self._attached().schedule.entries):
                if found[index] == OK and any(found[before] > OK for before in entry.waits):
                    found[index] = POISONED
        return found

    def hold(self, operations: bool, copies: bool) -> None:
        """Do nothing: `hand_over` waits for the gate."""

    def has_work(self, copies: bool) -> bool:
        """Return whether a piece runs or is ready; with `copies`, whether anything handed over is not over."""
        if copies:
            return any(not event.done for event in reversed(self._events))
        pieces = zip(self._pieces, self._behind, strict=True)
        return any(not event.done and all(before.done for before in behind) for event, behind in pieces)

    @property
    def finished(self) -> int:
        """0: everything runs on streams of the device, which count it."""
        return 0

    @property
    def depth(self) -> tuple[int, int]:
        return 0, 0

    @property
    def running(self) -> Mapping[str, tuple[PendingWork, float]]:
        return {}

    @property
    def waiting(self) -> Collection[PendingWork]:
        return ()

    def start(self) -> None:
        """Do nothing: a replayer has no threads."""

    def close(self, patience_s: float | None = None) -> None:
        """Forget the recording. The device's streams finish what was handed over."""
        self.detach()
        self.on_transfer = None

    def _attached(self) -> Recording:
        if self._recording is None:
            raise RuntimeError("the replayer has no recording; attach one first")
        return self._recording

    def _of(self, stretch: int) -> list[tuple[int, Item]]:
        """Return the items of a stretch that were handed over, with their indices."""
        return [(index, item) for index, item in enumerate(self._items[: len(self._events)]) if item.stretch == stretch]

    def _launch(self, piece: Piece) -> StreamEvent:
        recording, recorder = self._attached(), self._device.recorder
        assert recorder is not None
        number = len(self._pieces)
        # Wait for the piece before, since a stream may hand over a piece that waits for nothing ahead of earlier ones. And do
        # not run after a launch that failed: its results may be anything, and as an index be out of range.
        graph, before, after = recording.graphs.found[number], tuple(self._pieces[-1:]), self._of_asides(piece.after)
        what = f"operations {piece.start} to {piece.stop - 1} of {recording.schedule.program.name}, which run as a graph"
        event = recorder.replay(graph, before, after, what)
        self._pieces.append(event)
        self._behind.append((*before, *after))
        return event

    def _begin(self, aside: Aside) -> StreamEvent:
        """Enqueue work of the host, behind the piece and the asides that it needs; return its event."""
        entry, behind = self._attached().entry(aside), [self._pieces[aside.behind]] if aside.behind >= 0 else []
        waits, after = (*behind, *self._of_asides(aside.waits)), self._of_asides(aside.after)
        if entry.kind is Kind.TRANSFER:
            assert self.on_transfer is not None
            event: StreamEvent = self.on_transfer(aside.entry, (*waits, *after))
            return event
        arrays = self._attached().operands(aside.entry)
        if isinstance(entry.what, Operation):
            return self._device.launch_on_host(entry.what, arrays, self._attached().number(entry.what), waits, after)
        to, source = arrays
        return self._device.copy(to, source, waits, after, entry.what)

    def _of_asides(self, entries: Sequence[int]) -> StreamEvents:
        return tuple([self._asides[entry] for entry in entries])

    def _forget_run(self) -> None:
        self._events, self._pieces, self._behind, self._asides = [], [], [], {}
        self._released = 0
