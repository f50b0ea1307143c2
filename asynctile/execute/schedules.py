"""The runs of a share's programs: which are carried out by coroutines and which are played; and the schedules bound now.

Every run of a program follows a schedule. The schedule depends only on the program, on how the caps are cut for it and on
where the tiles stand, and so do the bytes that move. A program has one schedule that begins at its seam, where its runs
end, and one for each other start: its first run, and a run after another program.

Some runs go by coroutines (asynctile/execute/issuer.py): the first run of a program, and every run in which a kernel is not
compiled, a trace is recorded, or much is fetched. From the second run on, while its schedule is kept, a program is
played by workers or graphs, whatever ran in between.

Where tiles come and go, one schedule at a time is bound, and it is left when another program runs. Where everything
stays, schedules are not in each other's way: all that are played stay bound, and such a program is played whenever it
comes again.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asynctile.execute.arrival import can_begin, error_of, fill, in_the_way, leave_clean, make_room, start_of
from asynctile.execute.bound import Bound, results_nbytes
from asynctile.execute.graphs.recording import Recording
from asynctile.execute.graphs.replayer import Replayer
from asynctile.execute.issuer import Issuer
from asynctile.execute.job import FailedJob, Job
from asynctile.execute.scheduled_job import Executor, ScheduledJob
from asynctile.execute.template import Kernels, Template
from asynctile.execute.templates import Templates
from asynctile.execute.workers.player import Player as Workers
from asynctile.launch.assembly import Assembly
from asynctile.memory.tiers import Tiers
from asynctile.program.program import Program
from asynctile.schedule.schedule import Schedule
from asynctile.schedule.start import Start
from asynctile.storage.demand import Demand
from asynctile.storage.ledger import never_written
from asynctile.storage.tile import Tile

#: Most bytes that a played program may fetch: they pass through memory of this size, which the whole share uses.
MOST_FETCHED = 16 << 20


class Schedules:
    """The runs of one share. compute: runs a Python function in a thread. is_on: returns whether anything is played."""

    def __init__(self, assembly: Assembly, compute: Callable[..., Awaitable[Any]], is_on: Callable[[], bool]) -> None:
        self._assembly = assembly
        self._tiers: Tiers = assembly.tiers
        self._compute = compute
        self._is_on = is_on
        self._last: Callable[[], Program | None] = lambda: None
        self._templates = Templates(assembly.tiers, compute, self._dropped)
        #: bound schedules, by program; the one that the player has attached
        self._bounds: dict[Program, Bound] = {}
        self._attached: Bound | None = None
        #: memory for fetched results, outside the caps; empty before the first played program that fetches
        self._results = np.empty(0, np.uint8)

    async def start(
        self, program: Program, demand: Demand, inputs: Mapping[str, np.ndarray], outputs: dict[str, np.ndarray]
    ) -> Job:
        """Begin a run of `program`; see Runtime.start."""
        if self._tiers.run_ahead.stalled is not None:
            raise self._tiers.run_ahead.stalled  # the last run still hangs in tiles that this one would use
        self._check_given(program, inputs)
        bound = self._bounds.get(program)
        if bound is not None and self._is_right(bound):
            await bound.fill(inputs)
        else:
            self._check_written(program)
            all_stay = self._tiers.caps.have_room_for(demand)
            again = self._last() is program or self._is_kept(program)
            self._last = weakref.ref(program)
            self._leave_others(program, also_played=not all_stay)
            try:
                bound = await self._bound(program, demand, inputs, again=again)
            except _Unarrived as failed:
                return FailedJob(self._assembly, program, failed.error)
        return ScheduledJob(self._assembly, self._runner(bound, outputs), bound, outputs)

    def leave(self) -> None:
        """Unbind every schedule: the tiers are as after any other job, and the player holds none of their memory."""
        self._leave_others(None, also_played=True)
        self._detach()

    def forget(self, tiles: Iterable[Tile]) -> None:
        """Drop the schedules of programs that train these tiles, which are gone for good."""
        self.leave()  # a schedule holds as much memory as its tiles do
        gone = set(tiles)
        self._templates.forget(gone)

    def close(self) -> None:
        """Drop every schedule and every view of memory that is about to go. Nothing runs any more."""
        self._attached = None
        self._bounds.clear()
        self._templates.clear()
        self._results = np.empty(0, np.uint8)

    @property
    def _kernels(self) -> Kernels:
        return self._tiers.device.kernels

    def _check_given(self, program: Program, inputs: Mapping[str, np.ndarray]) -> None:
        """Raise AsynctileError if an input is missing."""
        for name, tile in program.inputs.items():
            if name not in inputs:
                raise never_written(tile)

    def _check_written(self, program: Program) -> None:
        """Raise AsynctileError if the program reads a tile first that has never been written."""
        given = set(program.inputs.values())
        for tile in program.first_uses:
            if tile not in given and not self._tiers.copies.is_written(tile):
                raise never_written(tile)

    def _may_play(self, program: Program) -> bool:
        """Return whether the program may be played, as far as is known: no trace looks at each operation."""
        return (
            self._is_on()
            and self._templates.may_play(program)
            and results_nbytes(program) <= MOST_FETCHED
            and not any(stream.trace is not None for stream in self._tiers.streams())
        )

    def _is_right(self, bound: Bound) -> bool:
        """Return whether `bound` is for the executor that is to run it now, and still holds."""
        return bound.template.played is self._may_play(bound.schedule.program) and bound.holds(self._kernels)

    async def _bound(self, program: Program, demand: Demand, inputs: Mapping[str, np.ndarray], *, again: bool) -> Bound:
        """Return the program's schedule, bound for a player if it can be played now, else for coroutines."""
        before = self._bounds.get(program)
        if before is not None and not (before.stands() and self._templates.has(program)):
            self._let_go(self._bounds.pop(program))
            before = None
        if before is None:
            await self._gather(program)
            await self._tiers.caps.cut_for_schedule(demand)
        plays = (again or self._templates.has(program)) and self._may_play(program) and self._has_players()
        unwritten = self._unwritten(program) if before is None else before.unwritten
        try:
            start = None
            if before is None:
                steady = await self._templates.of(program, demand, played=False)
                start = await self._arrive(steady.schedule, inputs)
            if plays:
                template = await self._templates.of(program, demand, played=True, start=start)
                if template.played:
                    bound = await self._bind(template, inputs, before, unwritten)
                    if bound is not None:
                        return bound
            template = await self._templates.of(program, demand, played=False, start=start)
            bound = await self._bind(template, inputs, before, unwritten)
        except BaseException:
            self._assembly.release((*program.inputs.values(), *unwritten))
            raise
        assert bound is not None, "coroutines are always ready"
        return bound

    async def _gather(self, program: Program) -> None:
        """Let devices give up the tiles whose copies are in the way of the program: RAM then has the newest bytes."""
        tiers = self._tiers
        if in_the_way(tiers, program):
            await tiers.caps.unpack()  # RAM must have slots
            tiers.copies.give_up(in_the_way(tiers, program))

    def _runner(self, bound: Bound, outputs: Mapping[str, np.ndarray]) -> Executor:
        """Return the executor of `bound`."""
        self._templates.used(bound.schedule.program)
        if bound.template.played:
            self._attach(bound)
            return self._player()
        tiers = self._tiers
        return Issuer(bound.played, tiers.devices, tiers.run_ahead, tiers.gate, outputs)

    async def _bind(
        self, template: Template, inputs: Mapping[str, np.ndarray], before: Bound | None, unwritten: Collection[Tile]
    ) -> Bound | None:
        """Bind the schedule, which begins where the tiles stand; return None if the device cannot get ready to play it.

        before: a schedule of the program that is bound and ends here. unwritten: the program's tiles without bytes.
        """
        tiers, program = self._tiers, template.schedule.program
        if before is not None:
            self._bounds.pop(program, None)
            self._end(before)
        bound = Bound(template, tiers, self._memory_for(template), unwritten)
        try:
            if before is not None or tiers.host.arena.packed:
                await bound.fill(inputs)
            if await self._is_ready(bound):
                self._bounds[program] = bound
        finally:
            if program not in self._bounds:
                bound.transfers.give_back()
        return self._bounds.get(program)

    def _unwritten(self, program: Program) -> Collection[Tile]:
        """Return the standing tiles without bytes, except inputs. The program writes them before it reads them."""
        given = set(program.inputs.values())
        return {tile for tile in program.standing if tile not in given and not self._tiers.copies.is_written(tile)}

    async def _arrive(self, steady: Schedule, inputs: Mapping[str, np.ndarray]) -> Start | None:
        """Put the inputs in place; return where the tiles stand, or None if that is where the schedule `steady` begins."""
        tiers, program = self._tiers, steady.program
        for tier in tiers.from_the_top():
            for pool in tier.arena.pools:
                pool.tidy()  # while the same slots are free, a schedule gets the same ones, and its graphs fit
        await fill(self._assembly, program, inputs)
        await tiers.run_ahead.settle()
        error = error_of(tiers, program)
        if error is not None:
            raise _Unarrived(error)
        make_room(tiers, steady)
        start = start_of(tiers, program)
        if not can_begin(steady, start):
            return start
        leave_clean(tiers, steady)
        return None

    async def _is_ready(self, bound: Bound) -> bool:
        """Return whether `bound` can be played now.

        All graphs are captured first, in a thread; if that fails, coroutines take over.
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

    def _memory_for(self, template: Template) -> np.ndarray:
        """Return the memory for its results. Coroutines put results where they are wanted at once."""
        if template.played and results_nbytes(template.schedule.program) > self._results.size:
            self._results = self._tiers.device.numbers(MOST_FETCHED // 8).view(np.uint8)  # memory that copies can go to
        return self._results

    def _is_kept(self, program: Program) -> bool:
        """Return whether the program is known where everything stays, as it does now."""
        return not any(tier.arena.divided for tier in self._tiers.from_the_top()) and self._templates.has(program)

    def _attach(self, bound: Bound) -> None:
        """Make the player play this schedule."""
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
        """End the use of `bound`: detach it from its player, and give back its blocks in the spill file."""
        if self._attached is bound:
            self._detach()
        bound.transfers.give_back()

    def _leave_others(self, program: Program | None, *, also_played: bool) -> None:
        """Unbind schedules of other programs, whose inputs make room: those run by coroutines may never come again."""
        for other, bound in list(self._bounds.items()):
            if other is not program and (also_played or not bound.template.played):
                self._let_go(self._bounds.pop(other))

    def _let_go(self, bound: Bound) -> None:
        """End the use of `bound`, which is not kept any more, and release its inputs."""
        self._end(bound)
        self._assembly.release(bound.schedule.program.inputs.values())

    def _dropped(self, program: Program, templates: Sequence[Template | None]) -> None:
        """Unbind the program's schedule if it is bound by one of these templates, which are not kept any more."""
        bound = self._bounds.get(program)
        if bound is not None and bound.template in templates:
            self._let_go(self._bounds.pop(program))

    def _player(self) -> Workers | Replayer:
        """Return the player of the share, making it at first use. The engine closes it."""
        tiers = self._tiers
        if tiers.player is None:
            tiers.player = self._hired()
        player = tiers.player
        assert isinstance(player, Workers | Replayer)
        return player

    def _has_players(self) -> bool:
        """Return whether the system lets a player work; asked before each run that would be played."""
        player = self._player()
        return isinstance(player, Replayer) or player.hire()

    def _hired(self) -> Workers | Replayer:
        tiers, workers = self._tiers, self._tiers.device.workers
        if tiers.device.recorder is not None:
            return Replayer(tiers.device, tiers.run_ahead, tiers.gate, lambda: tiers.is_shared)
        assert workers is not None
        return Workers(workers.threads, workers.link_rate, workers.peer_rate, len(tiers.devices))


class _Unarrived(Exception):
    """No schedule can begin, because the bytes of a tile are lost by `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error
