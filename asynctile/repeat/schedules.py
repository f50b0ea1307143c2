"""Which programs run by schedules, and who carries them out; and the schedules that are bound to the tiers now.

Where tiles come and go every run has a schedule. Where all of them stay the first run of a program decides as it goes, which
is nothing but to begin; so does any run that fetches much, or has no prefetch. A schedule is a function of the program and of
how the caps are cut for it, so what moves depends on nothing else. Its first run goes by coroutines (asynctile/run/issuer.py),
and so does any in which a kernel is not compiled or somebody looks at each operation. From the second on it is played by
workers or graphs, and so is one that was played before, whatever ran between.

Where tiles come and go one schedule at a time is bound, and left when another program runs. Where everything stays, nothing of
one is in the way of another: all stay bound, and a program that has been played is played whenever it comes again.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asynctile.memory.tiers import Tiers
from asynctile.play.player import Player as Workers
from asynctile.program.program import Program
from asynctile.repeat.arrival import arrange, fill
from asynctile.repeat.bound import Bound, TooFewSlots, results_nbytes
from asynctile.repeat.packings import Packings
from asynctile.repeat.played_job import PlayedJob, Player
from asynctile.repeat.template import Kernels, Template
from asynctile.repeat.templates import Templates
from asynctile.replay.recording import Recording
from asynctile.replay.replayer import Replayer
from asynctile.run.assembly import Assembly
from asynctile.run.issuer import Issuer
from asynctile.run.job import Job
from asynctile.schedule.schedule import Schedule
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile

logger = logging.getLogger(__name__)

#: What a program that is played may fetch, bytes: it is copied once more, through memory of this size that all of a share use.
MOST_FETCHED = 16 << 20


class Schedules:
    """Those of one share. compute: runs Python in a thread. is_on: whether anything is played."""

    def __init__(self, assembly: Assembly, compute: Callable[..., Awaitable[Any]], is_on: Callable[[], bool]) -> None:
        self._assembly = assembly
        self._tiers: Tiers = assembly.tiers
        self._compute = compute
        self._is_on = is_on
        self._last: Callable[[], Program | None] = lambda: None
        self._packings = Packings(assembly, compute)
        self._templates = Templates(assembly.tiers, compute, self._dropped)
        #: those whose schedules stand, of what is kept; the one that the player has
        self._bounds: dict[Program, Bound] = {}
        self._attached: Bound | None = None
        #: beside the caps; none before the first that fetches
        self._results = np.empty(0, np.uint8)

    async def start(
        self, program: Program, demand: Demand, inputs: Mapping[str, np.ndarray], outputs: dict[str, np.ndarray]
    ) -> Job | PlayedJob:
        """Begin a run of `program`; see Share.start."""
        planned = await self.begin(program, demand, inputs, outputs)
        if planned is not None:
            return planned
        await self._assembly.cut(demand)
        try:
            for name, value in inputs.items():
                await self._assembly.put(program.inputs[name], value)
            return Job(self._assembly, program, demand, outputs)
        except BaseException:
            self._assembly.release(program.inputs.values())
            raise

    async def begin(
        self, program: Program, demand: Demand, inputs: Mapping[str, np.ndarray], outputs: dict[str, np.ndarray]
    ) -> PlayedJob | None:
        """A run of `program` by its schedule; or None: then it decides as it goes. Raises what cutting the tiers may raise."""
        if self._tiers.run_ahead.stalled is not None:
            raise self._tiers.run_ahead.stalled  # the last run still hangs in what it would use
        complete = program.inputs.keys() <= inputs.keys()  # else coroutines say which is missing
        may, bound = complete and self._may(program), self._bounds.get(program)
        if bound is not None and may and self._is_right(bound):
            await bound.fill(inputs)
        else:
            all_stay = complete and self._tiers.caps.have_room_for(demand)
            again = self._last() is program or self._is_kept(program)
            self._last, may = weakref.ref(program), may and (again or not all_stay)
            if not all_stay:
                self._leave_all_but(program if may else None)
            if not may:
                return None
            bound = await self._bound(program, demand, inputs, again=again)
            if bound is None:
                return None
        return PlayedJob(self._assembly, self._runner(bound), bound, outputs)

    def leave(self) -> None:
        """Nothing is played for now; the tiers are as after any other job, and who plays holds no memory of theirs."""
        self._leave_all_but(None)
        self._detach()

    def forget(self, tiles: Iterable[Tile]) -> None:
        """These are gone for good, and with them the programs that train them: their schedules hold as much as they do."""
        self.leave()
        gone = set(tiles)
        self._templates.forget(gone)
        self._packings.forget(gone)

    def close(self) -> None:
        """Nothing runs any more, and nothing will: keep no schedule, and no view of memory that is about to go."""
        self._attached = None
        self._bounds.clear()
        self._templates.clear()
        self._packings.clear()
        self._results = np.empty(0, np.uint8)

    @property
    def _kernels(self) -> Kernels:
        return self._tiers.device.kernels

    def _may(self, program: Program) -> bool:
        """Whether it may run by a schedule."""
        return self._is_on() and self._tiers.lockstep is None and results_nbytes(program) <= MOST_FETCHED

    def _may_play(self) -> bool:
        """Whether there is somebody to play, and nobody looks at each operation."""
        return self._templates.is_possible and not any(stream.trace is not None for stream in self._tiers.device.streams())

    def _is_right(self, bound: Bound) -> bool:
        """Whether it is bound for those who are to run it now, and holds."""
        played = self._may_play() and self._templates.is_played(bound.schedule.program)
        return bound.template.played is played and bound.holds(self._kernels)

    async def _bound(
        self, program: Program, demand: Demand, inputs: Mapping[str, np.ndarray], *, again: bool
    ) -> Bound | None:
        """Its schedule, bound for who plays it, or for coroutines; None if it has none, or tiles do not come to its start."""
        before = self._bounds.get(program)
        if before is not None and not (before.stands() and self._templates.has(program)):
            self._let_go(self._bounds.pop(program))
            before = None
        packing = await self._packings.cut(program, demand) if before is None else None
        may_play = (again or self._templates.has(program)) and self._may_play() and self._has_players()
        for played in (True, False) if may_play else (False,):
            template = await self._templates.of(program, demand, packing, played=played)
            bound = None if template is None else await self._bind(template, inputs, before)
            if bound is not None or template is None or not template.played:
                return bound
        return None

    def _runner(self, bound: Bound) -> Player:
        """Who carries it out."""
        self._templates.used(bound.schedule.program)
        if bound.template.played:
            self._attach(bound)
            return self._player()
        tiers = self._tiers
        return Issuer(bound.played, tiers.device, tiers.run_ahead, tiers.gate)

    async def _bind(
        self, template: Template, inputs: Mapping[str, np.ndarray], before: Bound | None
    ) -> Bound | None:
        """Bring the tiers to where its schedule begins; None if they do not come there, or the device does not get ready.
        before: the same schedule, bound for others to run it, which ends here: all stands where it is to.
        """
        tiers, program = self._tiers, template.schedule.program
        try:
            if before is None:
                if not await self._arrive(template.schedule, inputs):
                    return None
            else:
                self._bounds.pop(program, None)
                self._end(before)
            try:
                bound = Bound(template, tiers, self._memory_for(program))
                tiers.unranked()
            except TooFewSlots as error:
                logger.warning("%s is not played for now: %s", program.name, error)
                return None
            try:
                if before is not None or tiers.host.arena.packed:
                    await bound.fill(inputs)
                if await self._is_ready(bound):
                    self._bounds[program] = bound
            finally:
                if program not in self._bounds:
                    bound.transfers.give_back()
            return self._bounds.get(program)
        except BaseException:
            self._release(program.inputs.values())
            raise

    async def _arrive(self, schedule: Schedule, inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether tiles came to where it begins."""
        tiers, program = self._tiers, schedule.program
        for tier in tiers.from_the_top():
            for pool in tier.arena.pools:
                pool.tidy()  # as long as the same slots are free a schedule gets the same ones, and its graphs fit
        start, numbers = schedule.start, range(len(tiers.from_the_top()))
        return await fill(self._assembly, program, inputs, start) and await arrange(tiers, program, start, numbers)

    async def _is_ready(self, bound: Bound) -> bool:
        """Whether it can be played now. Graphs are captured in a thread, all of them before the first runs: where that does not
        work the program is issued from its begin.
        """
        recording = bound.played
        if not isinstance(recording, Recording):
            return True
        try:
            if not recording.is_captured:
                await self._compute(recording.capture)
        except Exception as error:
            self._templates.give_up(bound.template, error)
            return False
        self._templates.captured()
        return True

    def _memory_for(self, program: Program) -> np.ndarray:
        """Where its results are put."""
        if results_nbytes(program) > self._results.size:
            self._results = self._tiers.device.numbers(MOST_FETCHED // 8).view(np.uint8)  # where copies can go
        return self._results

    def _is_kept(self, program: Program) -> bool:
        """Whether it has been played where everything stays, as it does now."""
        return not any(tier.arena.divided for tier in self._tiers.from_the_top()) and self._templates.has(program)

    def _attach(self, bound: Bound) -> None:
        """The player plays this one."""
        if self._attached is not bound:
            self._attached = None
            self._player().attach(bound.played)
            self._attached = bound

    def _detach(self) -> None:
        if self._attached is None:
            return
        self._attached = None
        self._player().detach()
        self._player().on_transfer = None

    def _end(self, bound: Bound) -> None:
        """Nobody runs it any more."""
        if self._attached is bound:
            self._detach()
        bound.transfers.give_back()

    def _leave_all_but(self, program: Program | None) -> None:
        for other in [other for other in self._bounds if other is not program]:
            self._let_go(self._bounds.pop(other))

    def _let_go(self, bound: Bound) -> None:
        """It is bound no more."""
        self._end(bound)
        self._release(bound.schedule.program.inputs.values())

    def _dropped(self, program: Program, templates: Sequence[Template | None]) -> None:
        """They are kept no more."""
        bound = self._bounds.get(program)
        if bound is not None and bound.template in templates:
            self._let_go(self._bounds.pop(program))

    def _player(self) -> Workers | Replayer:
        """That of the share, made when it is first wanted; the engine closes it."""
        tiers = self._tiers
        if tiers.player is None:
            tiers.player = self._hired()
        player = tiers.player
        assert isinstance(player, Workers | Replayer)
        return player

    def _has_players(self) -> bool:
        """Whether the system lets somebody play: asked again before each run that would be played."""
        player = self._player()
        return isinstance(player, Replayer) or player.hire()

    def _hired(self) -> Workers | Replayer:
        tiers, workers = self._tiers, self._tiers.device.workers
        if tiers.device.recorder is not None:
            return Replayer(tiers.device, tiers.run_ahead, tiers.gate, lambda: tiers.is_shared)
        assert workers is not None
        return Workers(workers.threads, workers.up_rate, workers.down_rate)

    def _release(self, tiles: Iterable[Tile]) -> None:
        top = self._tiers.top
        for tile in tiles:
            residency = top.of(tile)
            if residency.slot is not None or residency.backing is not None:
                top.release(residency)
