"""Which programs are played: those that run twice in a row. Their schedules, and those that are bound to the tiers now.

The first run of a program goes by coroutines, and so does whatever cannot be played: programs that fetch much, kernels that
are not compiled, tiers without prefetch, a traced engine. From the second run in a row on the schedule decides. It is a
function of the program and of how the caps are cut for it, so what moves still depends on nothing else. Where tiles come and
go, devices without workers and kernels that are not compiled have coroutines follow the packing from then on.

Where tiles come and go one schedule at a time is bound, and left when another program runs. Where everything stays, nothing of
one is in the way of another: all stay bound, and a program that has been played is played whenever it comes again.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asynctile.memory.tiers import Tiers
from asynctile.play.native import player_supported
from asynctile.play.player import Player
from asynctile.program.program import Program
from asynctile.repeat.arrival import arrange, fill, planned_start
from asynctile.repeat.bound import Bound, results_nbytes
from asynctile.repeat.packings import Packings
from asynctile.repeat.played_job import PlayedJob
from asynctile.repeat.rehearsal import rehearse
from asynctile.repeat.template import Kernels, Template
from asynctile.run.assembly import Assembly
from asynctile.run.job import Job
from asynctile.schedule.packing import Packing
from asynctile.schedule.schedule import TOP, Schedule
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile

#: The most schedules that are kept for one share, and the most of their entries, of about 800 bytes each. But as many as FEW
#: are kept however long they are: a training needs its step and its validation, of each shape that comes again.
KEPT, ENTRIES, FEW = 32, 1 << 18, 8
#: What a program that is played may fetch, bytes: it is copied once more, through memory of this size that all of a share use.
MOST_FETCHED = 16 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a program under one cut: its schedule, and the template for these kernels; None where there is none."""

    schedule: Schedule | None
    kernels: dict[str, Callable[..., None]]
    template: Template | None


class Schedules:
    """Those of one share. compute: runs Python in a thread. is_on: whether anything is played."""

    def __init__(self, assembly: Assembly, compute: Callable[..., Awaitable[Any]], is_on: Callable[[], bool]) -> None:
        self._assembly = assembly
        self._tiers: Tiers = assembly.tiers
        self._compute = compute
        self._is_on = is_on
        self._last: Callable[[], Program | None] = lambda: None
        self._packings = Packings(assembly, compute)
        #: by program and cut, the one used last at the end
        self._kept: OrderedDict[Any, Kept] = OrderedDict()
        #: those whose schedules stand, of what is kept; whose tables the workers have
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
    ) -> Job | PlayedJob | None:
        """A run of `program` that is played, or goes by a packing; or None: then it decides as it goes. Raises what cutting the
        tiers may raise.
        """
        if self._tiers.run_ahead.stalled is not None:
            raise self._tiers.run_ahead.stalled  # the last run still hangs in what it would use
        complete = program.inputs.keys() <= inputs.keys()  # else coroutines say which is missing
        may = complete and self._may(program)
        bound = self._bounds.get(program)
        if bound is not None and may and bound.holds(self._kernels):
            await bound.fill(inputs)
        else:
            if not (complete and self._tiers.caps.have_room_for(demand)):
                self.leave()
            again = self._last() is program or self._is_kept(program)
            self._last = weakref.ref(program)
            if not (again and complete and (may or self._may_follow())):
                return None
            before = self._bounds.pop(program, None)
            if before is not None:
                self._let_go(before)
            packing = await self._packings.cut(program, demand)
            template = await self._template(program, demand, packing) if may else None
            if template is None:
                return None if packing is None else await self._follow(packing, demand, inputs, outputs)
            bound = await self._bind(template, inputs)
        if bound is None:
            return None
        self._attach(bound)
        return PlayedJob(self._assembly, self._player(), bound, outputs)

    def leave(self) -> None:
        """Nothing is played for now; the tiers are as after any other job, and the workers hold no memory of theirs."""
        bounds, self._bounds = self._bounds, {}
        if not bounds:
            return
        self._detach()
        for bound in bounds.values():
            self._let_go(bound)

    def forget(self, tiles: Iterable[Tile]) -> None:
        """These are gone for good, and with them the programs that train them: their schedules hold as much as they do."""
        self.leave()
        gone = set(tiles)
        for key in [key for key in self._kept if not gone.isdisjoint(key[0].standing)]:
            del self._kept[key]
        self._packings.forget(gone)

    def close(self) -> None:
        """Nothing runs any more, and nothing will: keep no schedule, and no view of memory that is about to go."""
        self._attached = None
        self._bounds.clear()
        self._kept.clear()
        self._packings.clear()
        self._results = np.empty(0, np.uint8)

    @property
    def _kernels(self) -> Kernels:
        return self._tiers.device.kernels

    def _may(self, program: Program) -> bool:
        """Whether there is somebody to play it, and nobody looks at each operation."""
        device, tiers = self._tiers.device, self._tiers
        return (
            self._is_on()
            and player_supported()
            and device.workers is not None
            and tiers.lockstep is None
            and results_nbytes(program) <= MOST_FETCHED
            and not any(stream.trace is not None for stream in device.streams())
        )

    def _may_follow(self) -> bool:
        """Whether coroutines run by a packing whatever repeats: there is nobody who could play it."""
        return self._is_on() and self._tiers.device.workers is None and self._tiers.lockstep is None

    async def _follow(
        self, packing: Packing, demand: Demand, inputs: Mapping[str, np.ndarray], outputs: dict[str, np.ndarray]
    ) -> Job | None:
        """A run by coroutines that follow `packing`, for which the tiers are cut; None if tiles do not come to its start."""
        tiers, assembly, program = self._tiers, self._assembly, packing.program
        try:
            start = planned_start(packing, over_link=tiers.link is not None)
            if not (await fill(assembly, program, inputs, start) and await arrange(tiers, start, [TOP])):
                self._release(program.inputs.values())
                return None
            for name, value in inputs.items() if tiers.host.arena.packed else ():
                await assembly.put(program.inputs[name], value)
            return Job(assembly, program, demand, outputs, packing)
        except BaseException:
            self._release(program.inputs.values())
            raise

    async def _bind(self, template: Template, inputs: Mapping[str, np.ndarray]) -> Bound | None:
        """Bring the tiers to where its schedule begins, and let the workers have it; None if they do not come there."""
        tiers, assembly, program = self._tiers, self._assembly, template.schedule.program
        try:
            start, numbers = template.schedule.start, range(len(tiers.from_the_top()))
            if not (await fill(assembly, program, inputs, start) and await arrange(tiers, start, numbers)):
                return None
            bound = Bound(template, tiers, tiers.unranked(program), self._memory_for(program))
            if tiers.host.arena.packed:
                await bound.fill(inputs)
            self._bounds[program] = bound
            return bound
        except BaseException:
            self._release(program.inputs.values())
            raise

    def _memory_for(self, program: Program) -> np.ndarray:
        """Where its results are put."""
        if results_nbytes(program) > self._results.size:
            self._results = np.empty(MOST_FETCHED, np.uint8)
        return self._results

    def _is_kept(self, program: Program) -> bool:
        """Whether it has been played where everything stays, as it does now."""
        return not any(tier.arena.divided for tier in self._tiers.from_the_top()) and (program, _cut(self._tiers)) in self._kept

    def _attach(self, bound: Bound) -> None:
        """The workers play this one."""
        key = bound.schedule.program, _cut(self._tiers)
        if key in self._kept:
            self._kept.move_to_end(key)
        if self._attached is not bound:
            self._attached = None
            self._player().attach(bound.tables)
            self._attached = bound

    def _detach(self) -> None:
        self._attached = None
        self._player().detach()
        self._player().on_transfer = None

    def _let_go(self, bound: Bound) -> None:
        """It is bound no more."""
        if self._attached is bound:
            self._detach()
        bound.transfers.give_back()
        self._release(bound.schedule.program.inputs.values())

    async def _template(self, program: Program, demand: Demand, packing: Packing | None) -> Template | None:
        key, kernels = (program, _cut(self._tiers)), self._called(program)
        kept = self._kept.get(key)
        if kept is None or kept.kernels != kernels:
            before, made = kept, list[Kept]()

            def make() -> None:
                schedule = before.schedule if before is not None else rehearse(program, demand, self._tiers, packing)
                made.append(Kept(schedule, kernels, _template_of(schedule, kernels, self._tiers)))

            try:
                await self._compute(make)
            finally:  # a cancellation waits for it as well: what is made is kept, or a short timeout would make it each time
                self._kept.update((key, one) for one in made)
            kept = self._kept[key]
        self._kept.move_to_end(key)
        self._drop()
        return kept.template

    def _drop(self) -> None:
        """The schedules unused for longest go, if there are too many, and what is bound of them."""
        lengths = [0 if one.schedule is None else len(one.schedule) for one in self._kept.values()]
        entries = sum(lengths)
        for length in lengths:
            if len(self._kept) <= KEPT and (len(self._kept) <= FEW or entries <= ENTRIES):
                break
            (program, _), dropped = self._kept.popitem(last=False)
            bound = self._bounds.get(program)
            if bound is not None and bound.template is dropped.template:
                self._let_go(self._bounds.pop(program))
            entries -= length

    def _called(self, program: Program) -> dict[str, Callable[..., None]]:
        """The kernels of a program, as they are now: tests put others in their places."""
        names = {operation.kernel for operation in program.operations()}
        return {name: self._kernels[name] for name in names if name in self._kernels}

    def _player(self) -> Player:
        """That of the share, made when it is first wanted; the engine closes it."""
        if self._tiers.player is None:
            workers = self._tiers.device.workers
            assert workers is not None
            self._tiers.player = Player(workers.threads, workers.up_rate, workers.down_rate)
        player = self._tiers.player
        assert isinstance(player, Player)
        return player

    def _release(self, tiles: Iterable[Tile]) -> None:
        top = self._tiers.top
        for tile in tiles:
            residency = top.of(tile)
            if residency.slot is not None or residency.backing is not None:
                top.release(residency)


def _cut(tiers: Tiers) -> tuple[Any, ...]:
    """How the caps are cut, as far as decisions depend on it; a tier that is packed has no pools."""
    return tuple(
        (tier.arena.cap, *((pool.slot_nbytes, pool.limit) for pool in tier.arena.pools)) if tier.arena.divided else ()
        for tier in tiers.from_the_top()
    )


def _template_of(schedule: Schedule | None, kernels: Kernels, tiers: Tiers) -> Template | None:
    """None where there is no schedule, or a kernel without machine code in it."""
    try:
        return None if schedule is None else Template(schedule, kernels, tiers.link is not None)
    except ValueError:
        return None
