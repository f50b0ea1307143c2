"""The templates of a share's programs: one for each program, cut of the caps and start, and a bound on how many are kept.

A schedule is worked out once for a program and a cut, in a thread. It becomes a template for coroutines, and one for
the player on the device: compiled workers or graphs. schedules.py decides which programs are played when.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from asynctile.execute.graphs.graph_template import GraphTemplate
from asynctile.execute.space import schedule_for, schedule_from
from asynctile.execute.template import Kernels, Template
from asynctile.execute.workers.calls import Calls
from asynctile.memory.tiers import Tiers
from asynctile.program.program import Program
from asynctile.schedule.schedule import Schedule
from asynctile.schedule.start import Start
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile

logger = logging.getLogger(__name__)

#: Most schedules that are kept for one share, and most of their entries, about 800 bytes each. FEW schedules are kept however
#: long they are: a training needs its step and its validation, in each shape that comes again.
KEPT, ENTRIES, FEW = 32, 1 << 18, 8
#: Most nodes of their graphs, about 10 KB each on the device, outside its cap. The running program's graphs are always kept.
NODES = 1 << 15


@dataclass(slots=True)
class Kept:
    """Everything known of a program under one cut of the caps, for these kernels.

    issued: template for coroutines.
    played: template for the player; None if it cannot be played, or before that is first wanted: a program that runs
        once needs none.
    may_play: whether it could be played, as far as is known.
    """

    kernels: dict[str, Callable[..., None]]
    issued: Template
    played: Template | None = None
    may_play: bool = True


class Templates:
    """The templates of one share. compute: runs a Python function in a thread.

    dropped: called with a program and the templates of it that are dropped.
    """

    def __init__(
        self,
        tiers: Tiers,
        compute: Callable[..., Awaitable[Any]],
        dropped: Callable[[Program, Sequence[Template | None]], None],
    ) -> None:
        self._tiers = tiers
        self._compute = compute
        self._dropped = dropped
        #: by program and cut, the last one used at the end
        self._kept: OrderedDict[Any, Kept] = OrderedDict()

    @property
    def _has_player(self) -> bool:
        """Whether the device has workers or graphs at all."""
        device = self._tiers.device
        return device.recorder is not None or device.workers is not None

    def has(self, program: Program) -> bool:
        """Return whether the program is known under the present cut of the caps."""
        return self._key(program) in self._kept

    def used(self, program: Program) -> None:
        """Note that the program runs now."""
        key = self._key(program)
        if key in self._kept:
            self._kept.move_to_end(key)

    def captured(self) -> None:
        """Note that the program asked for last has graphs.

        The other programs keep theirs as far as there is room, those used last first.
        """
        *others, last = [
            (program, kept.played) for (program, *_), kept in self._kept.items() if isinstance(kept.played, GraphTemplate)
        ]
        nodes = last[1].nodes + sum(template.nodes for _, template in others)
        for program, template in others:
            if nodes > NODES and template.nodes:
                nodes -= template.nodes
                self._dropped(program, [template])
                template.forget_graphs()

    def may_play(self, program: Program) -> bool:
        """Return whether the program could be played under the present cut, as far as is known."""
        kept = self._kept.get(self._key(program))
        return self._has_player and (kept is None or kept.may_play)

    async def of(self, program: Program, demand: Demand, *, played: bool, start: Start | None = None) -> Template:
        """Return the program's template under the present cut, making it if needed.

        BudgetError if the cut has no places for its tiles.
        played: return the template for the player if the program can be played, else that for coroutines.
        start: where the run begins; None: at the program's seam. The template that begins there must be known.
        """
        key, kernels = self._key(program, start), self._called(program)
        kept = self._kept.get(key)
        if kept is None or kept.kernels != kernels or (played and kept.may_play and kept.played is None):
            before, made = kept, list[Kept]()

            def make() -> None:
                if before is not None:
                    schedule = before.issued.schedule
                elif start is not None:
                    steady = self._kept[self._key(program)].issued.schedule
                    schedule = schedule_from(start, steady, demand, self._tiers)
                else:
                    schedule = schedule_for(program, demand, self._tiers)
                issued = before.issued if before is not None and before.kernels == kernels else Template(schedule, kernels)
                able = self._made(schedule, kernels) if played else None
                made.append(Kept(kernels, issued, able, may_play=not played or able is not None))

            try:
                await self._compute(make)
            finally:  # even if cancelled: keep what was made, or callers with a short timeout would make it anew each time
                self._kept.update((key, one) for one in made)
            kept = self._kept[key]
        self._kept.move_to_end(key)
        self._drop()
        return kept.played if played and kept.played is not None else kept.issued

    def give_up(self, template: Template, why: BaseException) -> None:
        """Note that the device could not get ready to play the template.

        Coroutines run its program from now on, while caps and kernels stay the same. Searched by template, not by key:
        another share may have come or gone meanwhile, which changes the key.
        """
        program = template.schedule.program
        for kept in self._kept.values():
            if kept.played is template:
                kept.played, kept.may_play = None, False
        if isinstance(template, GraphTemplate):
            template.forget_graphs()  # at once, since their memory may be what was missing
        logger.warning(
            "%s cannot record %s as graphs (%s: %s); its operations are issued one by one: slower, with the same results",
            self._tiers.device.name, program.name, type(why).__name__, why,
        )  # fmt: skip

    def forget(self, tiles: Container[Tile]) -> None:
        """Drop the programs that train these tiles or begin beside them. The tiles are gone for good.

        Their schedules hold as much memory as the tiles do.
        """
        for key in [key for key in self._kept if any(tile in tiles for tile in _tiles_of(key))]:
            del self._kept[key]

    def clear(self) -> None:
        """Drop all templates, since nothing runs any more."""
        self._kept.clear()

    def _key(self, program: Program, start: Start | None = None) -> Any:
        """Return the key of a template: everything that it depends on, except for kernels. start: as in `of`."""
        return program, _cut(self._tiers), self._is_in_turns, start

    @property
    def _is_in_turns(self) -> bool:
        """Whether graphs must be short because other shares take turns. Workers can be held anywhere."""
        return self._tiers.device.recorder is not None and self._tiers.is_shared

    def _made(self, schedule: Schedule, kernels: Kernels) -> Template | None:
        """Return a template for the player; None if it cannot be played, such as when a kernel has no machine code."""
        device = self._tiers.device
        if not self._has_player:
            return None
        if device.recorder is not None:
            return GraphTemplate(schedule, kernels, device, self._tiers.pace, in_turns=self._is_in_turns)
        try:
            return Calls(schedule, kernels, self._tiers.link is not None)
        except ValueError:
            return None

    def _called(self, program: Program) -> dict[str, Callable[..., None]]:
        """Return the present kernels of a program. Tests replace kernels."""
        kernels = self._tiers.device.kernels
        names = {operation.kernel for operation in program.operations()}
        return {name: kernels[name] for name in names if name in kernels}

    def _drop(self) -> None:
        """Drop the least recently used templates while there are too many, and unbind their schedules.

        If most of them were never played, drop one of those: programs that run once must not push out programs that come
        again.
        """
        entries = sum(len(one.issued.schedule) for one in self._kept.values())
        while len(self._kept) > KEPT or (len(self._kept) > FEW and entries > ENTRIES):
            *others, _ = self._kept
            once = [key for key in others if self._kept[key].played is None]
            key = once[0] if 2 * len(once) > len(others) else others[0]
            gone = self._kept.pop(key)
            self._dropped(key[0], [gone.issued, gone.played])
            entries -= len(gone.issued.schedule)


def _tiles_of(key: Any) -> Iterable[Tile]:
    """Return the persistent tiles of a key."""
    program, *_, start = key
    return program.standing if start is None else [*program.standing, *start.tiles()]


def _cut(tiers: Tiers) -> tuple[Any, ...]:
    """Return how the caps are cut, as far as schedules depend on it."""
    return tiers.caps.in_turn, *(tier.arena.cap if tier.arena.divided else None for tier in tiers.from_the_top())
