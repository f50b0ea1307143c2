"""A schedule played by worker threads, and what the event loop is told of it.

Covers stretches, events and transfers for the host. The threads are crew.py's, what they do worker.py's, what they share
state.py's. Everything but `transferred` and `close` is called on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from asynctile.errors import DeviceError
from asynctile.play.crew import Crew, drop
from asynctile.play.native import player_supported
from asynctile.play.places import FAILED, OK, OUT, PENDING, RUNNING, SINCE, STALL
from asynctile.play.state import PlayState
from asynctile.play.tables import OPERATION, Tables
from asynctile.streams.event import PendingWork, StreamEvent


class Player:
    """Plays tables on `threads` worker threads; a streams.event.Runner.

    up_rate, down_rate: bytes a second of each direction of the link, None without a limit. on_transfer: called on the loop with
    the index of a TRANSFER entry that is ready; `transferred` is to follow. What is played is in no trace: while one is
    recorded nothing is (repeat/schedules.py).
    """

    name = "player"

    def __init__(self, threads: int, up_rate: float | None, down_rate: float | None) -> None:
        if not player_supported():
            raise DeviceError("schedules cannot be played on this machine: it takes Linux on x86-64 or AArch64; use coroutines")
        self.threads = threads
        self.on_transfer: Callable[..., Any] | None = None
        self._rates = float(up_rate or 0), float(down_rate or 0)
        self._crew = Crew()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._finalizer = weakref.finalize(self, drop, self._crew, self._eventfd, os.getpid())
        self._state: PlayState | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[tuple[str, int], StreamEvent] = {}
        self._released = self._told_of = 0
        self._out: set[int] = set()
        self._finished, self._stall_s, self._held = 0, 0.0, (False, False)

    @property
    def tables(self) -> Tables | None:
        """What is attached."""
        return self._state.tables if self._state is not None else None

    def hire(self) -> bool:
        """Start the threads unless they are there; False if the system refuses one."""
        return bool(self._crew.threads) or self._crew.hire(self.threads)

    def attach(self, tables: Tables) -> None:
        """Workers serve these from now on, and no others; DeviceError without any. They keep the arrays alive."""
        if self._crew.closing or not self.hire():
            raise DeviceError("nobody can play: the engine was closed while it worked, or the system refused its threads")
        self._let_go()
        self._state = PlayState(tables, self.threads, self._rates, self._eventfd)
        self._state.hold(*self._held)
        self._crew.change(self._state)

    def hold(self, operations: bool, copies: bool) -> None:
        """Whether workers begin no operations from now on, and no copies over the link, also of tables attached later.

        What runs ends. Transfers are told of as ever: who does them knows when (streams/gate.py).
        """
        if self._held != (operations, copies):
            self._held = operations, copies
            if self._state is not None:
                self._state.hold(operations, copies)

    def has_work(self, copies: bool) -> bool:
        """Whether operations run or are ready, be they held; or copies and transfers, if they count as well."""
        return self._state is not None and self._state.has_work(copies)

    def detach(self) -> None:
        """Workers return and rest without tables. What is not over by then is not played."""
        self._let_go()
        self._crew.change(None)

    def begin(self) -> None:
        """A new run of the attached tables, nothing released. RuntimeError where released entries of the last are not over."""
        state = self._attached()
        state.reset()
        self._events.clear()
        self._out.clear()
        self._released = self._told_of = 0
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._eventfd, self._told)

    def release(self, stretch: int) -> None:
        """The entries of a stretch may begin, and those of all before it."""
        if self._loop is None:
            raise RuntimeError("a stretch was released outside of a run; begin one first")
        state = self._attached()
        if not 0 <= stretch < len(state.left):
            raise ValueError(f"stretch {stretch} was released of a schedule that has {len(state.left)}")
        self._released = max(self._released, stretch + 1)
        state.release(stretch)

    async def hand_over(self) -> None:
        """Nothing: workers see what is released."""

    def reported(self, stretch: int) -> Sequence[StreamEvent]:
        """An event, done when all reporting entries of a stretch are over. error: if an entry of it had failed by then."""
        return (self._event("reported", stretch),)

    def ended(self, stretch: int) -> Sequence[StreamEvent]:
        """An event, done when all entries of a stretch are over. error: if one failed, or read what a failed one wrote."""
        return (self._event("ended", stretch),)

    def failure(self, entry: int) -> BaseException | None:
        """Why an entry of a stretch that has ended is no good."""
        return self._event("ended", int(self._attached().tables.stretches[entry])).error

    def transferred(self, entry: int, ok: bool) -> None:
        """From any thread: the host has done a transfer that it was told of."""
        state = self._state
        if state is None:
            return  # detached meanwhile
        if entry not in self._out:
            raise ValueError(f"entry {entry} has no transfer under way; tell of each once, after on_transfer")
        self._out.discard(entry)
        state.arrive(entry, ok)

    @property
    def statuses(self) -> np.ndarray:
        """(n,) int8 of this run: PENDING, OK, FAILED or POISONED of places.py."""
        return self._attached().statuses

    @property
    def finished(self) -> int:
        """Entries that are over, of all runs."""
        state = self._state  # once: other threads ask as well
        return self._finished + (state.finished if state is not None else 0)

    @property
    def stall_s(self) -> float:
        """Seconds, a worker, for which there was nothing to run while copies or transfers were under way."""
        state = self._state
        return self._stall_s + (float(state.times[STALL]) / self.threads if state is not None else 0.0)

    @property
    def depth(self) -> tuple[int, int]:
        state = self._state
        return (0, 0) if state is None else state.depth

    @property
    def running(self) -> Mapping[str, tuple[PendingWork, float]]:
        """By thread, what runs now and since when, to some milliseconds."""
        state = self._state
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
        """What is held, and released entries that wait for others, with those of them that are not over; operations first."""
        state = self._state
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
        """Nothing: threads are started by `hire`."""

    def close(self, patience_s: float | None = None) -> None:
        """From any thread: entries that run end, and the threads with them; after `patience_s` these are left behind."""
        loop = self._loop
        self._let_go()
        self.on_transfer = None  # who does transfers may hold all that is played
        self._crew.dismiss(patience_s)
        if loop is None or not _post(loop, self._finalizer):
            self._finalizer()

    def _piece(self, entry: int) -> PendingWork:
        return PendingWork(StreamEvent(what=self._attached().tables.what[entry]))

    def _attached(self) -> PlayState:
        if self._state is None:
            raise RuntimeError("the player has no tables; attach some first")
        return self._state

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
        return RuntimeError(f"{state.tables.what[first]} failed while it was played, and what reads from it was skipped")

    def _told(self) -> None:
        """On the loop: workers have written to the eventfd."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            pass
        state = self._state
        if state is None:
            return  # let go meanwhile
        is_over = not state.left.any()  # before events are looked at: one that comes later is told of once more
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
                raise RuntimeError(f"a schedule has transfers, and nobody to do that of entry {entry}; set on_transfer")
            self.on_transfer(entry)
        except Exception as error:  # who waits for it must not wait for ever
            assert self._loop is not None
            self._loop.call_exception_handler({"message": "a transfer could not be begun", "exception": error})
            if entry in self._out:
                self.transferred(entry, False)

    def _let_go(self) -> None:
        """End the run: who still waits for something of it is told, and what it counted is kept."""
        self._stop_listening()
        state = self._state
        if state is None:
            return
        self._state, self._finished, self._stall_s = None, self.finished, self.stall_s  # at once, for those threads
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
    """Call it on the loop: now, if this is its thread, or soon; False if the loop is closed."""
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
