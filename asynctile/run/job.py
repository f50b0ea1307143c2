"""A job: one run of a program, from its first operation to its last.

Owns what belongs to the run: where in the program it is, its positions and cursors, what its operations report. One task
awaits the tile coroutine of each operation, in program order, and steps the stages of prefetch behind each. Between operations
it waits for its turn, where several shares have jobs (asynctile/loop/turns.py). The caller decides at marks
(layers/trainer.py).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import numpy as np

from asynctile.program.operation import NO_NUMBER
from asynctile.program.program import Fetch, Program
from asynctile.run.assembly import Assembly
from asynctile.run.stage import Stage
from asynctile.storage.demand import Demand
from asynctile.storage.ledger import never_written
from asynctile.storage.residency import ABSENT
from asynctile.storage.tile import NEVER, Tile
from asynctile.streams.event import StreamEvent


class Job:
    """Walk `program` once: `await until(mark)` as often as wanted, then `await finish()`; `abandon` when it fails.

    demand: what the tiers were cut for. outputs: host arrays that the program's fetches fill; None in a run without bytes.
    numbers: float64, by the program's indices, valid once `reported` or `finish` has returned. issued: entries issued so far.
    AsynctileError for a program that reads a tile which nobody has written. played: it is not (asynctile/repeat/played_job.py).
    """

    played = False

    def __init__(
        self,
        assembly: Assembly,
        program: Program,
        demand: Demand,
        outputs: dict[str, np.ndarray] | None = None,
    ) -> None:
        tiers = assembly.tiers
        for tile in program.first_uses:
            if tiers.top.of(tile).state is ABSENT:
                raise never_written(tile)
        self.program = program
        self.outputs = outputs
        self.issued = 0
        self._assembly = assembly
        self._base, cursors = tiers.begin(program, demand)
        #: entries behind which the stages were stepped
        self._stepped = 0
        self._stage = Stage(tiers.top, cursors[0], None)
        if tiers.link is not None and tiers.host.arena.divided:
            self._stage.below = Stage(tiers.host, cursors[1], None)
        count = len(program.numbers) + 1
        self.numbers = tiers.device.numbers(count)
        self._next_uses = tiers.next_uses(program)
        self._views = [self.numbers[index : index + 1] for index in range(count)]
        self._reports: list[StreamEvent] = []

    async def until(self, mark: str) -> None:
        """Perform everything before `mark`. KeyError if the program has no such mark."""
        await self._advance(self.program.marks[mark])

    async def finish(self) -> None:
        """Perform the rest and wait until all of it has run; raises the first error."""
        await self.issue()
        await self._assembly.run_ahead.drain()
        self.numbers = self.numbers.copy()  # the next run writes there
        self._release(self.program.inputs.values())
        self.end()

    async def issue(self) -> None:
        """Perform the rest."""
        await self._advance(len(self.program))

    async def put(self, tile: Tile, value: np.ndarray) -> None:
        """At a mark that allows it (Program.mark): give an input another value, for what comes behind."""
        await self._assembly.put(tile, value)

    def end(self) -> None:
        """Everything was performed: the tiers know of it no more."""
        self._assembly.tiers.end(self._base, self.program)

    async def reported(self) -> None:
        """Wait for the numbers of everything issued so far."""
        reports, self._reports = self._reports, []
        for event in reports:
            await self._assembly.run_ahead.landed(event)

    async def abandon(self) -> list[Tile]:
        """Let what was enqueued run out, then free the temporaries; returns persistent tiles whose bytes are lost.

        Errors of that work are swallowed: the caller raises the one that it has.
        """
        assembly, tiers = self._assembly, self._assembly.tiers
        await assembly.run_ahead.settle()
        if assembly.run_ahead.stalled is not None:
            return []  # what is whole cannot be known while something still hangs
        self._release(self.program.temporaries)
        self._release(self.program.inputs.values())
        tiers.end(self._base, self.program, broken_off=True)
        return [tile for tile in self.program.standing if not tiers.top.rescue(tiers.top.of(tile))]

    def _release(self, tiles: Iterable[Tile]) -> None:
        top = self._assembly.tiers.top
        for tile in tiles:
            residency = top.of(tile)
            if residency.slot is not None or residency.backing is not None:
                top.release(residency)

    async def _advance(self, stop: int) -> None:
        entries, coroutine, step = self.program.entries, self._coroutine, self._stage.step
        gate = self._assembly.tiers.gate
        if self._stepped < self.issued:  # nothing was, or it was broken off there
            await step(self.issued - 1)
            self._stepped = self.issued
        while self.issued < stop:
            if gate.level:
                await gate.opened()
            index = self.issued
            entry = entries[index]
            if entry.tiles:
                event = await coroutine(index)
                if entry.number is not None and entry.number != NO_NUMBER:
                    self._reports.append(event)
            self.issued = index + 1  # before the step: broken off there, the job has enqueued this entry all the same
            await step(index)
            self._stepped = self.issued

    def _coroutine(self, index: int) -> Coroutine[Any, Any, StreamEvent]:
        """That of an entry which is no mark."""
        entry, base = self.program.entries[index], self._base
        uses = tuple([use if use == NEVER else base + use for use in self._next_uses[index]])
        target: np.ndarray | None = None
        if entry.number is not None:
            target = self._views[entry.number]
        elif type(entry) is Fetch and self.outputs is not None:
            target = self.outputs[entry.key][entry.index]
        return self._assembly.lanes[entry.device].perform(entry, uses, target)
