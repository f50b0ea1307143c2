"""The player: worker threads that play a schedule, and the events by which the event loop follows it.

Covers stretches (the entries between two marks, released one by one), their events, and transfers that the host carries out.
crew.py has the threads, worker.py their compiled loop, state.py the arrays that both sides share. Everything but
`transferred` and `close` is called on the event loop's thread.

Long because a player has two faces over one state: an executor of schedules, and a runner for the watchdog and
statistics.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from asynctile.errors import DeviceError
from asynctile.execute.workers.crew import Crew, drop
from asynctile.execute.workers.places import FAILED, OK, OUT, PENDING, RUNNING, SINCE, STALL
from asynctile.execute.workers.state import PlayState
from asynctile.execute.workers.tables import OPERATION, Tables
from asynctile.streams.event import PendingWork, StreamEvent


class Player:
    """Plays tables on `threads` worker threads for each of `devices`; a streams.event.Runner.

    up_rate, down_rate: bytes per second of each direction of a device's link; None without a limit.
    on_transfer: called on the loop with the index of a TRANSFER entry that is ready; call `transferred` when it is
        done.
    state: the arrays that it shares with its workers, None while nothing is attached.

    Played work is in no trace: while a trace is recorded, nothing is played (execute/schedules.py).
    """

    name = "player"

    def __init__(self, threads: int, link_rate: float | None, peer_rate: float | None, devices: int = 1) -> None:
        self.threads, self.devices = threads, devices
        self.on_transfer: Callable[..., Any] | None = None
        self._rates = float(link_rate or 0), float(peer_rate or 0)
        self._crew = Crew()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._finalizer = weakref.finalize(self, drop, self._crew, self._eventfd, os.getpid())
        self.state: PlayState | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[tuple[str, int], StreamEvent] = {}
        self._released = self._told_of = 0
        self._out: set[int] = set()
        self._finished, self._stall_s, self._held = 0, 0.0, (False, False)

    @property
    def tables(self) -> Tables | None:
        """The attached tables."""
        return self.state.tables if self.state is not None else None

    def hire(self) -> bool:
        """Start the threads unless they are there; return False if the system refuses one."""
        return bool(self._crew.threads) or self._crew.hire(self.threads * self.devices)

    def attach(self, tables: Tables) -> None:
        """Make the workers serve these tables, and keep their arrays alive. DeviceError if there are no workers."""
        if self._crew.closing or not self.hire():
            raise DeviceError("the player has no workers: the engine was closed meanwhile, or the system refused its threads")
        self._let_go()
        self.state = PlayState(tables, self.threads, self.devices, self._rates, self._eventfd)
        self.state.hold(*self._held)
        self._crew.change(self.state)

    def hold(self, operations: bool, copies: bool) -> None:
        """Set whether workers may begin no operations, and no copies over links, now and with tables attached later.

        Running work ends. Transfers are reported as ever: their executor knows when to begin them (streams/gate.py).
        """
        if self._held != (operations, copies):
            self._held = operations, copies
            if self.state is not None:
                self.state.hold(operations, copies)

    def has_work(self, copies: bool) -> bool:
        """Return whether operations run or are ready, even if held. copies: count copies and transfers, too."""
        return self.state is not None and self.state.has_work(copies)

    def detach(self) -> None:
        """Take the tables from the workers, which then rest. Entries that are not over are not played."""
        self._let_go()
        self._crew.change(None)

    def begin(self) -> None:
        """Begin a new run of the attached tables, with nothing released.

        RuntimeError if released entries of the last run are not over.
        """
        state = self._attached()
        state.reset()
        self._events.clear()
        self._out.clear()
        self._released = self._told_of = 0
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._eventfd, self._told)

    def release(self, stretch: int) -> None:
        """Allow the entries up to the end of this stretch to begin."""
        if self._loop is None:
            raise RuntimeError("a stretch was released outside a run; call begin() first")
        state = self._attached()
        if not 0 <= stretch < len(state.left):
            raise ValueError(f"stretch {stretch} was released, but the schedule has {len(state.left)}, counted from 0")
        self._released = max(self._released, stretch + 1)
        state.release(stretch)

    async def hand_over(self) -> None:
        """Do nothing: workers see what is released."""

    def reported(self, stretch: int) -> Sequence[StreamEvent]:
        """Return an event, done when all reporting entries of a stretch are over, with an error if an entry failed by then."""
        return (self._event("reported", stretch),)

    def ended(self, stretch: int) -> Sequence[StreamEvent]:
        """Return an event, done when all entries of a stretch are over, with an error if one failed or was poisoned."""
        return (self._event("ended", stretch),)

    def failure(self, entry: int) -> BaseException | None:
        """Return the error of an entry whose stretch has ended."""
        return self._event("ended", int(self._attached().tables.stretches[entry])).error

    def transferred(self, entry: int, ok: bool) -> None:
        """Note that a transfer reported by `on_transfer` is over. Any thread may call this."""
        state = self.state
        if state is None:
            return  # detached in the meantime
        if entry not in self._out:
            raise ValueError(f"entry {entry} has no transfer under way; report each one once, after on_transfer")
        self._out.discard(entry)
        state.arrive(entry, ok)

    @property
    def statuses(self) -> np.ndarray:
        """Statuses of the entries of this run, (n,) int8: PENDING, OK, FAILED or POISONED of places.py."""
        return self._attached().statuses

    @property
    def finished(self) -> int:
        """Number of entries that are over, in all runs."""
        state = self.state  # read once: other threads ask, too
        return self._finished + (state.finished if state is not None else 0)

    @property
    def stall_s(self) -> float:
        """Seconds per worker with nothing to run while copies or transfers were under way."""
        state = self.state
        return self._stall_s + (float(state.times[STALL]) / (self.threads * self.devices) if state is not None else 0.0)

    @property
    def depth(self) -> tuple[int, int]:
        state = self.state
        return (0, 0) if state is None else state.depth

    @property
    def running(self) -> Mapping[str, tuple[PendingWork, float]]:
        """The piece that each thread runs now, and since when, to some milliseconds."""
        state = self.state
        if state is None:
            return {}
        since = state.lanes.view(np.float64)[:, SINCE]
        return {
            thread.name: (self._piece(int(entry)), float(began))
            for thread, entry, began in zip(self._crew.threads, state.lanes[:, RUNNING], since, strict=True)
            if entry >= 0
        }

    @property
    def waiting(self) -> Collection[PendingWork]:
        """Held entries, and released entries that wait for others, with those that they still wait for.

        Operations come first.
        """
        state = self.state
        if state is None:
            return ()
        tables, is_pending = state.tables, state.statuses == PENDING
        waits = is_pending & (state.waiting > 0) & (tables.stretches < self._released)
        found = {entry: self._piece(entry) for entry in [*np.flatnonzero(waits).tolist(), *state.held]}
        for entry, piece in found.items():
            piece.order = entry + tables.count * int(tables.kinds[entry] != OPERATION)
        before = np.repeat(np.arange(tables.count), np.diff(tables.successors_at))
        held = is_pending[before] & waits[tables.successors]
        for holder, entry in zip(before[held].tolist(), tables.successors[held].tolist(), strict=True):
            found[entry].waits = (*found[entry].waits, StreamEvent(what=tables.what[holder]))
        return found.values()

    def start(self) -> None:
        """Do nothing: `hire` starts the threads."""

    def close(self, patience_s: float | None = None) -> None:
        """End the threads after the entries that they run. Any thread may call this.

        patience_s: seconds to wait for the threads, None for no limit; after that they are left behind.
        """
        loop = self._loop
        self._let_go()
        self.on_transfer = None  # its owner may hold everything that is played
        self._crew.dismiss(patience_s)
        if loop is None or not _post(loop, self._finalizer):
            self._finalizer()

    def _piece(self, entry: int) -> PendingWork:
        return PendingWork(StreamEvent(what=self._attached().tables.what[entry]))

    def _attached(self) -> PlayState:
        if self.state is None:
            raise RuntimeError("the player has no tables; attach some first")
        return self.state

    def _event(self, kind: str, stretch: int) -> StreamEvent:
        event = self._events.get((kind, stretch))
        if event is None:
            self._attached()
            event = self._events[kind, stretch] = StreamEvent(what=f"stretch {stretch}")
            self._look_at(kind, stretch, event)
        return event

    def _look_at(self, kind: str, stretch: int, event: StreamEvent) -> None:
        state = self._attached()
        left = state.left if kind == "ended" else state.reports_left
        if event.done or stretch >= self._released or left[stretch]:
            return
        state.meet()
        event.error = self._error(stretch)
        event.done = True
        event.wake()

    def _error(self, stretch: int) -> RuntimeError | None:
        state = self._attached()
        start, stop = state.tables.stretch_at[stretch : stretch + 2]
        statuses = state.statuses[start:stop]
        if not (statuses > OK).any():
            return None
        failed = np.flatnonzero(statuses == FAILED) + start
        first = int((failed if failed.size else np.flatnonzero(state.statuses == FAILED))[0])
        return RuntimeError(f"{state.tables.what[first]} failed while it was played, and readers of its results were skipped")

    def _told(self) -> None:
        """Read the reports of the workers. Runs on the loop when they have written to the eventfd."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            pass
        state = self.state
        if state is None:
            return  # let go in the meantime
        is_over = not state.left.any()  # before the events: an entry that ends later is reported once more
        out = int(state.control[OUT])
        state.meet()
        for entry in state.ring[self._told_of : out].tolist():
            self._told_of += 1
            self._out.add(entry)
            self._hand_over(entry)
        for (kind, stretch), event in list(self._events.items()):
            self._look_at(kind, stretch, event)
        if is_over:
            self._stop_listening()

    def _hand_over(self, entry: int) -> None:
        try:
            if self.on_transfer is None:
                raise RuntimeError(f"entry {entry} of the schedule is a transfer, which nobody carries out; set on_transfer")
            self.on_transfer(entry)
        except Exception as error:  # entries that wait for it must not wait for ever
            assert self._loop is not None
            self._loop.call_exception_handler({"message": "a transfer could not be begun", "exception": error})
            if entry in self._out:
                self.transferred(entry, False)

    def _let_go(self) -> None:
        """End the run: wake every waiter with an error, and keep the counts."""
        self._stop_listening()
        state = self.state
        if state is None:
            return
        self.state, self._finished, self._stall_s = None, self.finished, self.stall_s  # at once, since other threads read them
        events, self._events = self._events, {}
        for event in events.values():
            if not event.done:
                event.error = DeviceError("the player was closed, or given another schedule, while it played this one")
                event.done = True
                event.wake()

    def _stop_listening(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            _post(loop, lambda: loop.remove_reader(self._eventfd))


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> bool:
    """Call `call` on the loop, now if this is its thread, else soon; return False if the loop is closed."""
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_here = False
    if is_here:
        call()
        return True
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True
