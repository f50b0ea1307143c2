"""A schedule carried out by coroutines: each entry awaits the futures that it names, and then enqueues its work.

Each lane of a device has one task for as long as entries are handed over: compute, the host's operations, copies up and down,
and reads and writes of the spill file. A lane takes its entries in the order of the schedule. What one of them names may be
another lane's, which has not come to it: that is when it waits. So the lanes of transfers run ahead of compute, as far as bytes
may be on their way; they are the pipeline of prefetch. Since edges lead from earlier entries to later ones, the earliest that
was not enqueued can always go on, and lanes never wait for each other in a circle.

This is the way of a step that somebody looks at, or whose kernels have no machine code. What repeats goes by compiled workers
(asynctile/play) or graphs (asynctile/replay), with the same face.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asynctile.device.base import Device
from asynctile.memory.placed import Placed
from asynctile.play.places import FAILED, OK, PENDING
from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.schedule.schedule import DISK, RAM, Kind, Scheduled
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent
from asynctile.streams.gate import Gate
from asynctile.streams.run_ahead import RunAhead

#: Lanes, in the order in which their tasks begin: what moves first, so that it is ahead.
LOAD, UP, DOWN, STORE, HOST, COMPUTE = range(6)
_LANE = {Kind.UPLOAD: UP, Kind.DOWNLOAD: DOWN, Kind.FETCH: DOWN, Kind.COPY: COMPUTE}


class Issuer:
    """One run of `placed` on `device`. gate, run_ahead: of the share whose it is. outputs: what its fetches fill.

    on_transfer: (entry, events that must be over) enqueues a transfer and returns its event. All on the device's loop.
    """

    def __init__(
        self, placed: Placed, device: Device, run_ahead: RunAhead, gate: Gate, outputs: Mapping[str, np.ndarray]
    ) -> None:
        self.on_transfer: Callable[..., Any] | None = None
        self._placed = placed
        self._entries = placed.schedule.entries
        self._device = device
        self._run_ahead = run_ahead
        self._gate = gate
        self._results = [outputs[fetch.key][fetch.index] for fetch in placed.schedule.program.fetches]
        #: by entry; None before it is enqueued
        self._events: list[StreamEvent | None] = [None] * len(self._entries)
        #: entries that some lane waits for
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._lanes = lanes_of(self._entries)
        #: by lane, how many of its entries are enqueued
        self._done = dict.fromkeys(self._lanes, 0)
        self._released = 0

    def begin(self) -> None:
        """Nothing: it is made for one run."""

    def release(self, stretch: int) -> None:
        """The entries of a stretch may begin, and those of all before it, once they are handed over."""
        self._released = max(self._released, stretch + 1)

    async def hand_over(self) -> None:
        """Until all that was released is enqueued. Cancelled, it goes on from there. StalledError as RunAhead.settled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(self._issue(lane))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # StalledError, the same one for each lane that waited

    def reported(self, stretch: int) -> Sequence[StreamEvent]:
        """Of the operations of a stretch that report a number."""
        return [event for event, entry in self._of(stretch) if _reports(entry.what)]

    def ended(self, stretch: int) -> Sequence[StreamEvent]:
        """Of all of a stretch."""
        return [event for event, _ in self._of(stretch) if not event.done or event.error is not None]

    def failure(self, entry: int) -> BaseException | None:
        """Why an entry that is over is no good; what depends on it has the same error."""
        event = self._events[entry]
        return None if event is None else event.error

    def transferred(self, entry: int, ok: bool) -> None:
        """Nothing: the event of a transfer says so."""

    @property
    def statuses(self) -> np.ndarray:
        """(n,) int8 of this run: OK, FAILED, or PENDING for what is not over."""
        return np.array([_status(event) for event in self._events], np.int8)

    def _of(self, stretch: int) -> Iterable[tuple[StreamEvent, Scheduled]]:
        """Of a stretch what was enqueued."""
        starts = (*self._placed.schedule.stretches, len(self._entries))
        own = slice(starts[stretch], starts[stretch + 1])
        return [(event, entry) for event, entry in zip(self._events[own], self._entries[own], strict=True) if event is not None]

    async def _issue(self, lane: int) -> None:
        """Enqueue the entries of a lane that are released, one after another."""
        indices = self._lanes[lane]
        is_full = self._run_ahead.is_full if lane in (HOST, COMPUTE) else self._run_ahead.is_full_of_bytes
        while self._done[lane] < len(indices):
            index = indices[self._done[lane]]
            if self._entries[index].stretch >= self._released:
                break
            if self._gate.level:
                await self._gate.opened()
            if is_full():
                await self._room(is_full)
            event = await self._perform(index)
            self._events[index] = event
            self._done[lane] += 1
            if (future := self._futures.pop(index, None)) is not None and not future.done():
                future.set_result(None)

    async def _perform(self, index: int) -> StreamEvent:
        """The tile coroutine: wait for what the entry names, then enqueue its work behind that; returns its event."""
        entry = self._entries[index]
        waits, after = await self._enqueued(entry.waits), await self._enqueued(entry.after)
        if entry.kind is Kind.TRANSFER:
            for event in waits:  # a disk must not get, nor give, what is no good
                await self._run_ahead.settled(event)
                if event.error is not None:
                    return failed(event.error, entry.what)
            assert self.on_transfer is not None
            moved: StreamEvent = self.on_transfer(index, after)
            self._run_ahead.add(moved, entry.nbytes)
            return moved
        try:
            event = self._enqueue(entry, self._arrays(index), waits, after)
        except Exception as error:  # its event carries it to whoever waits
            return failed(error, entry.what)
        is_beside = entry.kind is Kind.OPERATION and entry.places[0].tier == RAM
        self._run_ahead.add(event, entry.nbytes, beside=is_beside)
        return event

    def _arrays(self, index: int) -> Sequence[Any]:
        """The operands of an entry; where a copy goes, and from where."""
        entry = self._entries[index]
        if entry.kind is not Kind.FETCH:
            return self._placed.operands(index)
        result, place = entry.places
        assert isinstance(entry.what, Tile)
        return self._results[result.index], self._placed.array(place, entry.what)

    def _enqueue(
        self, entry: Scheduled, arrays: Sequence[Any], waits: list[StreamEvent], after: list[StreamEvent]
    ) -> StreamEvent:
        device, what = self._device, entry.what
        if isinstance(what, Operation):
            launch = device.launch_on_host if entry.places[0].tier == RAM else device.launch
            return launch(what, arrays, self._placed.number(what), waits, after)
        move = {Kind.UPLOAD: device.upload, Kind.COPY: device.copy}.get(entry.kind, device.download)
        return move(*arrays, waits, after, what)

    async def _enqueued(self, entries: Sequence[int]) -> list[StreamEvent]:
        """The events of earlier entries that are not over, or went wrong, once all of them are enqueued."""
        found = []
        for before in entries:
            while (event := self._events[before]) is None:
                if before not in self._futures:
                    self._futures[before] = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._futures[before])  # others may wait for it as well
            if not event.done or event.error is not None:
                found.append(event)
        return found

    async def _room(self, is_full: Callable[[], bool]) -> None:
        """Wait until the host is within its limit again."""
        while is_full():
            try:
                await self._run_ahead.room()
            except Exception:
                if self._run_ahead.stalled is not None:
                    raise
                # else work that failed, whose event has the error


def lanes_of(entries: Sequence[Scheduled]) -> dict[int, list[int]]:
    """By lane the entries that go through it, in their order."""
    found = defaultdict(list)
    for index, entry in enumerate(entries):
        if entry.kind is Kind.OPERATION:
            lane = HOST if entry.places[0].tier == RAM else COMPUTE
        elif entry.kind is Kind.TRANSFER:
            lane = STORE if entry.places[0].tier == DISK else LOAD
        else:
            lane = _LANE[entry.kind]
        found[lane].append(index)
    return dict(sorted(found.items()))


def failed(error: BaseException, what: object) -> StreamEvent:
    """The event of work that never began."""
    event = StreamEvent(what=what)
    event.done, event.error = True, error
    return event


def _status(event: StreamEvent | None) -> int:
    if event is None or not event.done:
        return PENDING
    return OK if event.error is None else FAILED


def _reports(what: object) -> bool:
    return isinstance(what, Operation) and what.number not in (None, NO_NUMBER)
