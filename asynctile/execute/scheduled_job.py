"""A run of a program by its schedule.

A mark is a place in the program where the host looks at results, and a stretch is the entries between two marks. Compiled
workers, graphs of a device or coroutines carry out a stretch once the host has released it. If an entry fails, entries that
depend on it are no good, and the rest of the stretch still runs. So a step that fails or is given up is left at a mark,
where the schedule knows where every tile stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from asynctile.execute.alarm import Alarm
from asynctile.execute.arrival import stand
from asynctile.execute.bound import Bound
from asynctile.execute.workers.places import OK
from asynctile.launch.assembly import Assembly
from asynctile.program.program import UPDATE
from asynctile.schedule.schedule import NOBODY, Standing
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents


class Executor(Protocol):
    """An executor of schedules: workers/player.py, graphs/replayer.py or issuer.py. Called on the device's loop."""

    on_transfer: Callable[..., Any] | None

    def begin(self) -> None: ...

    def release(self, stretch: int) -> None: ...

    async def hand_over(self) -> None:
        """Wait until everything that was released is handed over to run."""

    def reported(self, stretch: int) -> Sequence[StreamEvent]:
        """Return events after which the numbers of a stretch that was handed over are there."""

    def ended(self, stretch: int) -> Sequence[StreamEvent]:
        """Return events after which all of a stretch that was handed over is over."""

    def failure(self, entry: int) -> BaseException | None:
        """Return the error of a released entry that is over and whose status is not OK."""

    def transferred(self, entry: int, ok: bool) -> None: ...

    @property
    def statuses(self) -> np.ndarray: ...


class ScheduledJob:
    """A Job that begins when it is made, on the device's loop. The inputs of `bound` must be filled (not checked).

    outputs: host arrays that the program's fetches fill.
    """

    def __init__(self, assembly: Assembly, player: Executor, bound: Bound, outputs: Mapping[str, np.ndarray]) -> None:
        self.program = bound.schedule.program
        self.played = bound.template.played
        self.numbers = bound.numbers
        self._assembly = assembly
        self._player = player
        self._bound = bound
        self._outputs = outputs
        self._asked = self._released = 0
        #: errors of the disk, by entry
        self._errors: dict[int, BaseException] = {}
        bound.transfers.begin_run()
        player.on_transfer = self._transfer
        player.begin()
        self._alarm = self._set_alarm()

    async def until(self, mark: str) -> None:
        """Let everything before `mark` run, and more: up to the first update, or to a mark where an input gets another value.

        So the workers need not rest while the host looks.
        """
        schedule = self._bound.schedule
        self._asked = schedule.marks[mark]
        stops = [stretch for name, stretch in schedule.marks.items() if name == UPDATE or self.program.rewritten[name]]
        await self._release(min((stretch for stretch in stops if stretch >= self._asked), default=self._asked))

    async def put(self, tile: Tile, value: np.ndarray) -> None:
        await self._wait(self._ended())  # work may still read the old value, or make room for the new one
        marks = self._bound.schedule.marks
        self._bound.put(next(name for name in marks if marks[name] == self._released), tile, value)

    async def reported(self) -> None:
        begun = [stretch for stretch in self._begun() if stretch < self._asked]
        await self._wait([event for stretch in begun for event in self._player.reported(stretch)])

    async def finish(self) -> None:
        await self._release(len(self._bound.schedule.stretches))
        await self._wait(self._ended())
        await self._assembly.run_ahead.settle()  # so that no other job has to wait for this one's work
        if self._alarm is not None:
            self._alarm.end()
        self.numbers = self.numbers.copy()  # the next run writes there
        if self.played:
            self._bound.fetch(self._outputs)
        self._count()
        self._bound.ended()
        self._assembly.inputs.announce(self.program.standing)

    async def abandon(self) -> list[Tile]:
        tiers, schedule = self._assembly.tiers, self._bound.schedule
        try:
            await self._player.hand_over()  # in case it was cancelled in the middle of this
            for event in self._ended():
                await tiers.run_ahead.settled(event)
            await tiers.run_ahead.settle()
        except Exception:
            if tiers.run_ahead.stalled is None:
                raise
            return []  # nobody can know which tiles are whole while something hangs
        finally:
            if self._alarm is not None:
                self._alarm.end()
        self._count()
        failure = partial(self._failure, self._player.statuses)
        standing = self._standing()
        stand(tiers, standing, self._bound.slots, failure)
        written = {one.tile for one in standing if max(one.written, one.saved) != NOBODY}
        self._assembly.release(tile for tile in self._bound.unwritten if tile not in written)
        self._assembly.release((*schedule.program.temporaries, *schedule.program.inputs.values()))
        return [tile for tile in schedule.program.standing if not tiers.copies.rescue(tile)]

    async def _release(self, stretches: int) -> None:
        """Let stretches 0 to `stretches` - 1 begin, and wait until they are handed over, not until they have run."""
        if stretches > self._released:
            self._released = stretches
            if self._begun():
                self._player.release(self._begun()[-1])  # and all before it
                await self._player.hand_over()

    def _begun(self) -> range:
        """Return the numbers of the released stretches that have entries."""
        return range(min(self._released, self._bound.played.stretch_count))

    def _ended(self) -> list[StreamEvent]:
        return [event for stretch in self._begun() for event in self._player.ended(stretch)]

    async def _wait(self, events: Sequence[StreamEvent]) -> None:
        """Wait until all events are done; raise the first error.

        Begins with the last event, since the others are then mostly done.
        """
        for event in reversed(events):
            await self._assembly.run_ahead.settled(event)
        for event in events:
            if event.error is not None:
                raise self._cause(event.error)

    def _standing(self) -> tuple[Standing, ...]:
        """Return where tiles stand after the last stretch that was released."""
        schedule = self._bound.schedule
        if self._released == len(schedule.stretches):
            return schedule.end
        marks = schedule.marks.items()
        return next((schedule.at[name] for name, stretch in marks if stretch == self._released), schedule.start)

    def _failure(self, statuses: np.ndarray, entry: int) -> BaseException | None:
        """Return the error of an entry that was released; None if it went well."""
        error = None if statuses[entry] == OK else self._player.failure(entry)
        return None if error is None else self._cause(error)

    def _transfer(self, entry: int, after: StreamEvents = ()) -> StreamEvent:
        """Begin a transfer for the player, which is due when `after` is over; return its event."""
        return self._bound.transfers.begin(entry, partial(self._transferred, entry), after)

    def _transferred(self, entry: int, error: BaseException | None) -> None:
        """Tell the player how a transfer went. Called by the thread of the transfer."""
        if error is not None:
            self._errors[entry] = error
        self._player.transferred(entry, error is None)

    def _cause(self, error: BaseException) -> BaseException:
        """Return the error that ended the exchange; otherwise that of the earliest failed transfer; otherwise `error`."""
        if self._alarm is not None and self._alarm.error is not None:
            return self._alarm.error
        return self._errors[min(self._errors)] if self._errors else error

    def _set_alarm(self) -> Alarm | None:
        """Return the alarm of a run that tiles of other nodes take part in; None for another run."""
        transfers = self._bound.transfers
        if transfers.exchange is None:
            return None

        def cause(entry: int) -> BaseException:
            told = self._errors.get(entry) or self._player.failure(entry)
            return told or RuntimeError(f"{self._bound.schedule.entries[entry].what} failed")

        return Alarm(transfers.exchange, lambda: self._player.statuses, cause)

    def _count(self) -> None:
        """Count the moves and operations among the entries that ran, and the peaks."""
        template, tiers = self._bound.template, self._assembly.tiers
        counts = template.counts(self._player.statuses == OK)
        for tier, uploaded, downloaded in zip(tiers.tops, counts.uploaded, counts.downloaded, strict=False):
            tier.loaded_nbytes += uploaded
            tier.written_nbytes += downloaded
        tiers.host.loaded_nbytes += counts.read
        tiers.host.written_nbytes += counts.written
        self._assembly.lanes[0].operations += counts.operations
        self._assembly.lanes[0].fetched_nbytes += counts.fetched
        self._assembly.passed_nbytes += counts.passed
        self._assembly.sent_nbytes += counts.sent
        self._assembly.received_nbytes += counts.received
        for tier, peak, others in zip(tiers.from_the_top(), template.schedule.peaks, self._bound.others_nbytes, strict=False):
            tier.ledger.peak_nbytes = max(tier.ledger.peak_nbytes, peak + others + tier.arena.lent_nbytes)
