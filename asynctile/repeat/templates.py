"""The templates of a share's programs: which program has one under which cut of the caps, and which are kept.

A schedule is worked out once for a program and a cut, in a thread, and made a template for coroutines, and for who plays it on
the device: compiled workers, or graphs. Which programs are played when is schedules.py's.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from asynctile.memory.tiers import Tiers
from asynctile.play.native import player_supported
from asynctile.program.program import Program
from asynctile.repeat.calls import Calls
from asynctile.repeat.graph_template import GraphTemplate
from asynctile.repeat.space import schedule_for
from asynctile.repeat.template import Kernels, Template
from asynctile.schedule.schedule import Schedule
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile

logger = logging.getLogger(__name__)

#: The most schedules that are kept for one share, and the most of their entries, of about 800 bytes each. But as many as FEW
#: are kept however long they are: a training needs its step and its validation, of each shape that comes again.
KEPT, ENTRIES, FEW = 32, 1 << 18, 8
#: The most nodes of their graphs, of some 10 KB each on the device, beside its cap; but the program that runs has its own.
NODES = 1 << 15


@dataclass(slots=True)
class Kept:
    """What is known of a program under one cut, for these kernels.

    issued: the template for coroutines. played: that for who plays it; None where nobody can, or before it is first wanted:
    programs that run once need none. may_play: whether somebody could, as far as is known.
    """

    kernels: dict[str, Callable[..., None]]
    issued: Template
    played: Template | None = None
    may_play: bool = True


class Templates:
    """Those of one share. compute: runs Python in a thread. dropped: called with a program and templates of it that go."""

    def __init__(
        self,
        tiers: Tiers,
        compute: Callable[..., Awaitable[Any]],
        dropped: Callable[[Program, Sequence[Template | None]], None],
    ) -> None:
        self._tiers = tiers
        self._compute = compute
        self._dropped = dropped
        #: by program and cut, the one used last at the end
        self._kept: OrderedDict[Any, Kept] = OrderedDict()

    @property
    def _has_player(self) -> bool:
        """Whether there is somebody who could play one."""
        device = self._tiers.device
        return device.recorder is not None or (device.workers is not None and player_supported())

    def has(self, program: Program) -> bool:
        """Whether it is known under the cut that there is now."""
        return self._key(program) in self._kept

    def used(self, program: Program) -> None:
        """It runs now."""
        key = self._key(program)
        if key in self._kept:
            self._kept.move_to_end(key)

    def captured(self) -> None:
        """The program asked for last has graphs: of the others those used last keep theirs, as far as there is room."""
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
        """Whether somebody could play it under the cut that there is now, as far as is known."""
        kept = self._kept.get(self._key(program))
        return self._has_player and (kept is None or kept.may_play)

    async def of(self, program: Program, demand: Demand, *, played: bool) -> Template:
        """That of a program under the cut that there is. played: for who plays it, if it can be; else that for coroutines.
        BudgetError if the cut leaves no places for all that it uses.
        """
        key, kernels = self._key(program), self._called(program)
        kept = self._kept.get(key)
        if kept is None or kept.kernels != kernels or (played and kept.may_play and kept.played is None):
            before, made = kept, list[Kept]()

            def make() -> None:
                schedule = before.issued.schedule if before is not None else schedule_for(program, demand, self._tiers)
                issued = before.issued if before is not None and before.kernels == kernels else Template(schedule, kernels)
                able = self._made(schedule, kernels) if played else None
                made.append(Kept(kernels, issued, able, may_play=not played or able is not None))

            try:
                await self._compute(make)
            finally:  # a cancellation waits for it as well: what is made is kept, or a short timeout would make it each time
                self._kept.update((key, one) for one in made)
            kept = self._kept[key]
        self._kept.move_to_end(key)
        self._drop()
        return kept.played if played and kept.played is not None else kept.issued

    def give_up(self, template: Template, why: BaseException) -> None:
        """The device could not get ready to play it: its program is issued, as long as caps and kernels are as they are.

        By the template: another share may have come or gone since it was asked for, and with that what it is kept under.
        """
        program = template.schedule.program
        for kept in self._kept.values():
            if kept.played is template:
                kept.played, kept.may_play = None, False
        if isinstance(template, GraphTemplate):
            template.forget_graphs()  # at once: it may be for want of their memory
        logger.warning(
            "%s cannot write %s down as graphs (%s: %s); its operations are issued one by one: slower, with the same results",
            self._tiers.device.name, program.name, type(why).__name__, why,
        )  # fmt: skip

    def forget(self, tiles: Container[Tile]) -> None:
        """These are gone for good, and with them the programs that train them: their schedules hold as much as they do."""
        for key in [key for key in self._kept if any(tile in tiles for tile in key[0].standing)]:
            del self._kept[key]

    def clear(self) -> None:
        """Nothing runs any more."""
        self._kept.clear()

    def _key(self, program: Program) -> Any:
        """What a template is a function of, kernels aside."""
        return program, _cut(self._tiers), self._is_in_turns

    @property
    def _is_in_turns(self) -> bool:
        """Whether graphs are to be short, for others' sake; workers can be held anywhere."""
        return self._tiers.device.recorder is not None and self._tiers.is_shared

    def _made(self, schedule: Schedule, kernels: Kernels) -> Template | None:
        """None where nobody can play it, as where a kernel has no machine code."""
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
        """The kernels of a program, as they are now: tests put others in their places."""
        kernels = self._tiers.device.kernels
        names = {operation.kernel for operation in program.operations()}
        return {name: kernels[name] for name in names if name in kernels}

    def _drop(self) -> None:
        """The schedules unused for longest go, if there are too many, and what is bound of them. Where most were never played,
        one of these goes: programs that run once are not to push out those that come again.
        """
        entries = sum(len(one.issued.schedule) for one in self._kept.values())
        while len(self._kept) > KEPT or (len(self._kept) > FEW and entries > ENTRIES):
            *others, _ = self._kept
            once = [key for key in others if self._kept[key].played is None]
            key = once[0] if 2 * len(once) > len(others) else others[0]
            gone = self._kept.pop(key)
            self._dropped(key[0], [gone.issued, gone.played])
            entries -= len(gone.issued.schedule)


def _cut(tiers: Tiers) -> tuple[Any, ...]:
    """How the caps are cut, as far as decisions depend on it."""
    return tiers.caps.in_turn, *(tier.arena.cap if tier.arena.divided else None for tier in tiers.from_the_top())
