"""A schedule carried out by coroutines: each entry awaits the futures that it names, then enqueues its work.

A stretch is the entries between two marks, where the host looks at results. The host releases stretches one by one.

While entries are handed over, each lane has one task. Every device has four lanes: compute, copies up, copies down, and
copies from other devices. The host has five more: its operations, reads and writes of the spill file, and tiles to and
from other nodes. A lane takes its entries in the order of the schedule. An entry may name an entry of another lane; its
lane waits only if the other lane has not enqueued that entry yet. So the lanes of transfers run ahead of compute, up to the
limit on bytes in flight. This is the prefetching pipeline.

Lanes never wait for each other in a circle. Edges lead from earlier entries to later ones, so the earliest entry that
is not enqueued can always go on.

A step goes this way the first time, while it is traced, or when its kernels have no machine code. Repeated steps are
carried out by compiled workers (asynctile/execute/workers) or graphs (asynctile/execute/graphs), behind the same protocol.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from asynctile.device.base import Device
from asynctile.execute.workers.places import FAILED, OK, PENDING
from asynctile.memory.placed import Placed
from asynctile.program.operation import Operation
from asynctile.schedule.schedule import RAM, Kind, Scheduled
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, failed
from asynctile.streams.gate import Gate
from asynctile.streams.run_ahead import RunAhead

#: The work of a lane. A lane is named by its work and its device, 0 for the host. Tasks of lanes begin in this order: transfers
#: first, so that they run ahead.
RECEIVE, LOAD, UP, PEER, DOWN, STORE, SEND, HOST, COMPUTE = range(9)
_WORK = {Kind.UPLOAD: UP, Kind.PASS: PEER, Kind.DOWNLOAD: DOWN, Kind.FETCH: DOWN, Kind.COPY: COMPUTE}


class Issuer:
    """One run of `placed` on `devices`, by coroutines on one loop.

    gate, run_ahead: those of the share.
    outputs: host arrays that the program's fetches fill.
    on_transfer: called with (entry, events that must be over); enqueues the transfer and returns its event.
    """

    def __init__(
        self, placed: Placed, devices: Sequence[Device], run_ahead: RunAhead, gate: Gate, outputs: Mapping[str, np.ndarray]
    ) -> None:
        self.on_transfer: Callable[..., Any] | None = None
        self._placed = placed
        self._entries = placed.schedule.entries
        self._devices = devices
        self._run_ahead = run_ahead
        self._gate = gate
        self._results = [outputs[fetch.key][fetch.index] for fetch in placed.schedule.program.fetches]
        #: event of each entry; None before it is enqueued
        self._events: list[StreamEvent | None] = [None] * len(self._entries)
        #: by entry, the futures of the lanes that wait for it
        self._futures: defaultdict[int, list[asyncio.Future[None]]] = defaultdict(list)
        self._lanes = lanes_of(self._entries, len(devices))
        #: transfers to and from other nodes
        self._away = frozenset(index for index, entry in enumerate(self._entries) if entry.node is not None)
        #: number of enqueued entries of each lane
        self._done = dict.fromkeys(self._lanes, 0)
        self._released = 0

    def begin(self) -> None:
        """Do nothing: an issuer is made for one run."""

    def release(self, stretch: int) -> None:
        """Allow the entries up to the end of this stretch to begin, once they are handed over."""
        self._released = max(self._released, stretch + 1)

    async def hand_over(self) -> None:
        """Enqueue everything that was released. Once cancelled, the next call goes on from there.

        StalledError as from RunAhead.settled.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(self._issue(lane))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # StalledError, the same for every lane that waited

    def reported(self, stretch: int) -> Sequence[StreamEvent]:
        """Return the events of the operations of a stretch that report a number."""
        return [event for event, entry in self._of(stretch) if entry.reports]

    def ended(self, stretch: int) -> Sequence[StreamEvent]:
        """Return the events of a stretch that are not done or have failed."""
        return [event for event, _ in self._of(stretch) if not event.done or event.error is not None]

    def failure(self, entry: int) -> BaseException | None:
        """Return the error of an entry that is over; None if it went well. Entries that read its bytes have the same error."""
        event = self._events[entry]
        return None if event is None else event.error

    def transferred(self, entry: int, ok: bool) -> None:
        """Do nothing: the event of a transfer tells."""

    @property
    def statuses(self) -> np.ndarray:
        """Statuses of the entries of this run, (n,) int8: OK, FAILED, or PENDING while not over."""
        return np.array([_status(event) for event in self._events], np.int8)

    def _of(self, stretch: int) -> Iterable[tuple[StreamEvent, Scheduled]]:
        """Return the enqueued entries of a stretch with their events."""
        starts = (*self._placed.schedule.stretches, len(self._entries))
        own = slice(starts[stretch], starts[stretch + 1])
        return [(event, entry) for event, entry in zip(self._events[own], self._entries[own], strict=True) if event is not None]

    async def _issue(self, lane: tuple[int, int]) -> None:
        """Enqueue the entries of a lane in order, and return before the first one that is not released.

        An entry is released once `release` has allowed its stretch to begin. Waits while the gate is closed, and while too
        many operations or bytes are in flight.
        """
        indices, ahead, (work, device) = self._lanes[lane], self._run_ahead, lane
        is_full = partial(ahead.is_full, device) if work in (HOST, COMPUTE) else ahead.is_full_of_bytes
        while self._done[lane] < len(indices):
            index = indices[self._done[lane]]
            if self._entries[index].stretch >= self._released:
                break
            if self._gate.level:
                await self._gate.opened()
            if is_full():
                await self._room(is_full, device)
            event = await self._perform(index, device)
            self._events[index] = event
            self._done[lane] += 1
            for future in self._futures.pop(index, ()):
                if not future.done():  # its lane may have been cancelled
                    future.set_result(None)

    async def _perform(self, index: int, device: int) -> StreamEvent:
        """Wait for the entries that this entry names, then enqueue its work behind their events; return its event.

        This is the tile coroutine of a schedule.
        """
        entry = self._entries[index]
        waits, after = await self._enqueued(entry.waits), await self._enqueued(entry.after)
        if self._away:
            await self._away_over(entry)
        if entry.kind is Kind.TRANSFER:
            for event in waits:  # bytes that are no good must not be written to the disk, nor read from it
                await self._run_ahead.settled(event)
                if event.error is not None:
                    return await self._given_up(event.error, entry, (*waits, *after))
            assert self.on_transfer is not None
            moved: StreamEvent = self.on_transfer(index, after)
            self._run_ahead.add(moved, entry.nbytes, away=index in self._away)
            return moved
        try:
            event = self._enqueue(self._devices[device], entry, self._arrays(index), waits, after)
        except Exception as error:  # the event carries it to every entry that waits
            return await self._given_up(error, entry, (*waits, *after))
        is_beside = entry.kind is Kind.OPERATION and entry.places[0].tier == RAM
        self._run_ahead.add(event, entry.nbytes, device=device, beside=is_beside)
        return event

    async def _away_over(self, entry: Scheduled) -> None:
        """Wait until the tiles that an entry waits for have come from other nodes, or have gone there.

        So whatever is enqueued ends by itself, and a lane at its limit never waits for another node.
        """
        for before in self._away.intersection((*entry.waits, *entry.after)):
            event = self._events[before]
            assert event is not None, "an entry that it waits for is enqueued"
            await self._run_ahead.settled(event)

    async def _given_up(self, error: BaseException, entry: Scheduled, before: Sequence[StreamEvent]) -> StreamEvent:
        """Return the event of an entry that fails without being enqueued, once all work before it is over.

        Entries behind it name it alone, and rely on it for everything that it comes after.
        """
        for event in before:
            await self._run_ahead.settled(event)
        return failed(error, entry.what)

    def _arrays(self, index: int) -> Sequence[Any]:
        """Return the operands of an entry, or target and source of a copy."""
        entry = self._entries[index]
        if entry.kind is not Kind.FETCH:
            return self._placed.operands(index)
        result, place = entry.places
        assert isinstance(entry.what, Tile)
        return self._results[result.index], self._placed.array(place, entry.what)

    def _enqueue(
        self, device: Device, entry: Scheduled, arrays: Sequence[Any], waits: list[StreamEvent], after: list[StreamEvent]
    ) -> StreamEvent:
        what = entry.what
        if isinstance(what, Operation):
            launch = device.launch_on_host if entry.places[0].tier == RAM else device.launch
            return launch(what, arrays, self._placed.number(what), waits, after)
        moves = {Kind.UPLOAD: device.upload, Kind.PASS: device.receive, Kind.COPY: device.copy}
        move = moves.get(entry.kind, device.download)
        return move(*arrays, waits, after, what)

    async def _enqueued(self, entries: Sequence[int]) -> list[StreamEvent]:
        """Wait until these earlier entries are enqueued; return their events, without those that have already succeeded."""
        found = []
        for before in entries:
            while (event := self._events[before]) is None:
                future = asyncio.get_running_loop().create_future()
                self._futures[before].append(future)
                await future
            if not event.done or event.error is not None:
                found.append(event)
        return found

    async def _room(self, is_full: Callable[[], bool], device: int) -> None:
        """Wait until the host is within its limit again."""
        while is_full():
            try:
                await self._run_ahead.room(device)
            except Exception:
                if self._run_ahead.stalled is not None:
                    raise
                # else work failed, and its event has the error


def lanes_of(entries: Sequence[Scheduled], devices: int) -> dict[tuple[int, int], list[int]]:
    """Return, by lane, the indices of the entries that go through it, in order."""
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for index, entry in enumerate(entries):
        if entry.kind is Kind.OPERATION:
            work = HOST if entry.places[0].tier == RAM else COMPUTE
        elif entry.kind is Kind.TRANSFER:
            ways = (STORE, LOAD) if entry.node is None else (SEND, RECEIVE)
            work = ways[entry.places[0].tier >= 0]
        else:
            work = _WORK[entry.kind]
        found[work, entry.device if devices > 1 else 0].append(index)
    return dict(sorted(found.items()))


def _status(event: StreamEvent | None) -> int:
    if event is None or not event.done:
        return PENDING
    return OK if event.error is None else FAILED
