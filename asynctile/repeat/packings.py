"""The packings of a share's programs: worked out once for each cap, in a thread, and kept; and tiers cut for one.

What a packing is and how it is found is asynctile/schedule/packing.py. Which programs are run by one is schedules.py's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container
from typing import Any

from asynctile.memory.tiers import Tiers
from asynctile.program.program import Program
from asynctile.repeat.space import space_of
from asynctile.run.assembly import Assembly
from asynctile.schedule.decide import plan_top
from asynctile.schedule.packing import Packing
from asynctile.storage.demand import Demand
from asynctile.storage.tile import Tile

#: The most that are kept for one share.
KEPT = 32


class Packings:
    """compute: runs Python in a thread, to its end."""

    def __init__(self, assembly: Assembly, compute: Callable[..., Awaitable[Any]]) -> None:
        self._assembly = assembly
        self._tiers = assembly.tiers
        self._compute = compute
        #: by program and what else it is a function of, the one used last at the end; None where slots remain
        self._kept: OrderedDict[Any, Packing | None] = OrderedDict()

    async def cut(self, program: Program, demand: Demand) -> Packing | None:
        """Cut the tiers so that what is planned depends on no program that ran before; the packing of the top one, which is
        packed then, or None, and it has slots. Raises what cutting may raise.
        """
        await self._assembly.cut(demand, exactly=True, packed=True)
        packing = await self._of(program, demand)
        if packing is not None:
            await self._tiers.caps.pack()
        elif self._tiers.top.arena.packed:
            await self._assembly.cut(demand, exactly=True)
        return packing

    def forget(self, tiles: Container[Tile]) -> None:
        """These are gone for good, and with them the programs that use them."""
        for key in [key for key in self._kept if any(tile in tiles for tile in key[0].standing)]:
            del self._kept[key]

    def clear(self) -> None:
        """Nothing runs any more."""
        self._kept.clear()

    async def _of(self, program: Program, demand: Demand) -> Packing | None:
        if not _may_pack(self._tiers):
            return None
        key = program, self._tiers.top.arena.cap
        if key not in self._kept:
            made: list[Packing | None] = []
            try:
                await self._compute(lambda: made.append(packing_of(program, demand, self._tiers)))
            finally:  # a cancellation waits for it as well: what is made is kept
                self._kept.update((key, one) for one in made)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


def packing_of(program: Program, demand: Demand, tiers: Tiers) -> Packing | None:
    """By which `program` is run in the top tier of `tiers`, which are cut for `demand`; None where that is to be in slots.

    What it returns depends on nothing else. Blocks.
    """
    return plan_top(program, space_of(tiers, demand)) if _may_pack(tiers) else None


def _may_pack(tiers: Tiers) -> bool:
    """Whether tiles come and go in the top tier, ahead of their use."""
    return tiers.top.arena.divided and tiers.lockstep is None
