"""The run of a program by its schedule.

Workers, the graphs of a device, or coroutines run a stretch, the host looks at marks. What depends on a failed entry is no
good, and the rest of the stretch runs; so a step that fails or is given up is left at a mark, where the schedule knows where
every tile stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from asynctile.play.places import OK
from asynctile.program.operation import DEVICE
from asynctile.program.program import UPDATE
from asynctile.repeat.arrival import stand
from asynctile.repeat.bound import Bound
from asynctile.run.assembly import Assembly
from asynctile.schedule.schedule import NOBODY, Standing
from asynctile.storage.tile import Tile
from asynctile.streams.event import StreamEvent, StreamEvents


class Player(Protocol):
    """Who runs a schedule: asynctile/play/player.py, replay/replayer.py or run/issuer.py. All on the device's loop."""

    on_transfer: Callable[..., Any] | None

    def begin(self) -> None: ...

    def release(self, stretch: int) -> None: ...

    async def hand_over(self) -> None:
        """Until what was released is with whoever runs it."""

    def reported(self, stretch: int) -> Sequence[StreamEvent]:
        """Done when the numbers of a stretch that was handed over are there."""

    def ended(self, stretch: int) -> Sequence[StreamEvent]:
        """Done when all of a stretch that was handed over is over."""

    def failure(self, entry: int) -> BaseException | None:
        """Why an entry that was released, and is over, is no good, which its status says."""

    def transferred(self, entry: int, ok: bool) -> None: ...

    @property
    def statuses(self) -> np.ndarray: ...


class ScheduledJob:
    """Begun when it is made, on the device's loop; its inputs are in place. outputs: what its fetches fill.

    The rest is as Job's.
    """

    def __init__(self, assembly: Assembly, player: Player, bound: Bound, outputs: Mapping[str, np.ndarray]) -> None:
        self.program = bound.schedule.program
        self.played = bound.template.played
        self.numbers = bound.numbers
        self._assembly = assembly
        self._player = player
        self._bound = bound
        self._outputs = outputs
        self._asked = self._released = 0
        #: what the disk said, by entry
        self._errors: dict[int, BaseException] = {}
        player.on_transfer = self._transfer
        player.begin()

    async def until(self, mark: str) -> None:
        """Also what is behind the mark, up to the first update or to where an input is rewritten: workers need not rest while
        the host looks.
        """
        schedule = self._bound.schedule
        self._asked = schedule.marks[mark]
        stops = [stretch for name, stretch in schedule.marks.items() if name == UPDATE or self.program.rewritten[name]]
        await self._release(min((stretch for stretch in stops if stretch >= self._asked), default=self._asked))

    async def put(self, tile: Tile, value: np.ndarray) -> None:
        await self._wait(self._ended())  # what still reads the old one, or makes room for the new one
        marks = self._bound.schedule.marks
        self._bound.put(next(name for name in marks if marks[name] == self._released), tile, value)

    async def reported(self) -> None:
        begun = [stretch for stretch in self._begun() if stretch < self._asked]
        await self._wait([event for stretch in begun for event in self._player.reported(stretch)])

    async def finish(self) -> None:
        await self._release(len(self._bound.schedule.stretches))
        await self._wait(self._ended())
        await self._assembly.run_ahead.settle()  # nothing is left for others to wait for
        self.numbers = self.numbers.copy()  # the next run writes there
        if self.played:
            self._bound.fetch(self._outputs)
        self._count()
        self._bound.ended()
        self._assembly.inputs.announce(self.program.standing)

    async def abandon(self) -> list[Tile]:
        tiers, schedule = self._assembly.tiers, self._bound.schedule
        try:
            await self._player.hand_over()  # where it was cancelled within that
            for event in self._ended():
                await tiers.run_ahead.settled(event)
            await tiers.run_ahead.settle()
        except Exception:
            if tiers.run_ahead.stalled is None:
                raise
            return []  # what is whole cannot be known while something still hangs
        self._count()
        failure = partial(self._failure, self._player.statuses)
        standing = self._standing()
        stand(tiers, standing, self._bound.slots, failure)
        written = {one.tile for one in standing if max(one.written, one.saved) != NOBODY}
        self._assembly.release(tile for tile in self._bound.unwritten if tile not in written)
        self._assembly.release((*schedule.program.temporaries, *schedule.program.inputs.values()))
        return [tile for tile in schedule.program.standing if not tiers.top.rescue(tiers.top.of(tile))]

    async def _release(self, stretches: int) -> None:
        """Let the stretches before this one run."""
        if stretches > self._released:
            self._released = stretches
            if self._begun():
                self._player.release(self._begun()[-1])  # and all before it
                await self._player.hand_over()

    def _begun(self) -> range:
        """The stretches that were released and have entries at all."""
        return range(min(self._released, self._bound.played.stretch_count))

    def _ended(self) -> list[StreamEvent]:
        return [event for stretch in self._begun() for event in self._player.ended(stretch)]

    async def _wait(self, events: Sequence[StreamEvent]) -> None:
        """Until all are over; raises the first error. From the last on: then seldom one is left to wait for."""
        for event in reversed(events):
            await self._assembly.run_ahead.settled(event)
        for event in events:
            if event.error is not None:
                raise self._cause(event.error)

    def _standing(self) -> tuple[Standing, ...]:
        """Where tiles stand behind the last stretch that was released."""
        schedule = self._bound.schedule
        if self._released == len(schedule.stretches):
            return schedule.end
        marks = schedule.marks.items()
        return next((schedule.at[name] for name, stretch in marks if stretch == self._released), schedule.start)

    def _failure(self, statuses: np.ndarray, entry: int) -> BaseException | None:
        """Of an entry that was to run; None for one that went well."""
        error = None if statuses[entry] == OK else self._player.failure(entry)
        return None if error is None else self._cause(error)

    def _transfer(self, entry: int, after: StreamEvents = ()) -> StreamEvent:
        """The player has one that is due, or will be when `after` is over."""
        return self._bound.transfers.begin(entry, partial(self._transferred, entry), after)

    def _transferred(self, entry: int, error: BaseException | None) -> None:
        """From the thread that did it."""
        if error is not None:
            self._errors[entry] = error
        self._player.transferred(entry, error is None)

    def _cause(self, error: BaseException) -> BaseException:
        """What went wrong first: if that was the disk, what it said, else what the player says."""
        return self._errors[min(self._errors)] if self._errors else error

    def _count(self) -> None:
        """What moved, and how many operations there were, among the entries that ran."""
        template, tiers = self._bound.template, self._assembly.tiers
        counts = template.counts(self._player.statuses == OK)
        tiers.top.loaded_nbytes += counts.uploaded
        tiers.top.written_nbytes += counts.downloaded
        tiers.host.loaded_nbytes += counts.read
        tiers.host.written_nbytes += counts.written
        self._assembly.lanes[DEVICE].operations += counts.operations
        self._assembly.lanes[DEVICE].fetched_nbytes += counts.fetched
        for tier, peak, others in zip(tiers.from_the_top(), template.schedule.peaks, self._bound.others_nbytes, strict=True):
            tier.ledger.peak_nbytes = max(tier.ledger.peak_nbytes, peak + others + tier.arena.lent_nbytes)
