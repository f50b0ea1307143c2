"""One run of a program on a lane: issue its entries, stop at marks, collect what it reports.

The caller decides at marks (layers/trainer.py); ordering and residency are the lane's.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from asynctile.program.handle import Handle
from asynctile.program.operation import NO_NUMBER, Operation
from asynctile.program.program import Fetch, Program
from asynctile.run.assembly import Tiers
from asynctile.run.graphs import Replay
from asynctile.storage.demand import Demand
from asynctile.storage.tile import NEVER
from asynctile.streams.stream import StreamEvent


class Run:
    """Walk `program` once: `await until(mark)` as often as wanted, then `await finish()`; `abandon` when it fails.

    numbers: float64, by the program's indices, valid once `reported` or `finish` has returned.
    outputs: host arrays that the program's fetches fill.
    issued: entries issued so far.
    """

    def __init__(
        self, tiers: Tiers, program: Program, demand: Demand, outputs: dict[str, np.ndarray] | None = None
    ) -> None:
        self.tiers = tiers
        self.program = program
        self.outputs = outputs or {}
        tiers.begin(program, demand)
        self._replay = tiers.replays.begin(program) if tiers.replays is not None else None
        count = len(program.numbers) + 1
        self.numbers = tiers.device.numbers(count) if self._replay is None else self._replay.numbers
        self.issued = 0
        self._next_uses = tiers.next_uses(program)
        self._views = [self.numbers[index : index + 1] for index in range(count)]
        self._reports: list[StreamEvent] = []

    async def until(self, mark: str) -> None:
        """Issue everything before `mark`. KeyError if the program has no such mark."""
        await self._issue(self.program.marks[mark])

    async def finish(self) -> None:
        """Issue the rest and wait until all of it has run; raises the first error."""
        await self._issue(len(self.program))
        await self.tiers.window.drain()
        self.numbers = self.numbers.copy()  # the next run writes there
        self._release(self.program.inputs.values())
        self.tiers.end(self.program)

    async def reported(self) -> None:
        """Wait for the numbers of everything issued so far."""
        reports, self._reports = self._reports, []
        for event in reports:
            await self.tiers.window.landed(event)

    async def abandon(self) -> list[Handle]:
        """Let what was enqueued run out, then free the temporaries; returns persistent tiles whose bytes are lost.

        Errors of that work are swallowed: the caller raises the one that it has.
        """
        tiers = self.tiers
        await tiers.window.settle()
        if tiers.window.stalled is not None:
            return []  # what is whole cannot be known while something still hangs
        self._release(self.program.temporaries)
        self._release(self.program.inputs.values())
        tiers.end(self.program, broken_off=True)
        return [tile for tile in self.program.standing if not tiers.top.rescue(tile)]

    def _release(self, tiles: Iterable[Handle]) -> None:
        for tile in tiles:
            if tile.slot is not None or tile.backing is not None:
                self.tiers.top.release(tile)

    async def _issue(self, stop: int) -> None:
        window, look_ahead = self.tiers.window, self.tiers.look_ahead()
        if self._replay is not None:
            await self._issue_whole(self._replay, stop)
        while self.issued < stop:
            index = self.issued
            if window.is_full():
                await window.room()
            self._issue_entry(index)
            look_ahead(index)
            self.issued = index + 1

    def _issue_entry(self, index: int) -> None:
        entry, lane, base = self.program.entries[index], self.tiers.lane, self.tiers.order.base
        uses = tuple([use if use == NEVER else base + use for use in self._next_uses[index]])
        if isinstance(entry, Operation):
            number = None if entry.number is None else self._views[entry.number]
            event = lane.issue(entry, uses, number)
            if number is not None and entry.number != NO_NUMBER:
                self._reports.append(event)
        elif isinstance(entry, Fetch):
            lane.fetch(entry.tile, self.outputs[entry.key][entry.index], uses[0])

    async def _issue_whole(self, replay: Replay, stop: int) -> None:
        """Segment by segment, as graphs."""
        while self.issued < stop:
            if replay.has(self.issued):
                self.issued, event = replay.play(self.issued)
            else:
                await self.tiers.window.drain()
                self.issued, event = replay.capture(self.program, self.issued, self._issue_entry)
            self._reports.append(event)
