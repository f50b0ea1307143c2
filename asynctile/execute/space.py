"""The space of a step: how the caps are cut for it, as far as its schedule depends on that. And its schedule there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from asynctile.errors import BudgetError
from asynctile.memory.tiers import Tiers
from asynctile.program.program import Program
from asynctile.schedule.decide import Cut, Space, arrive, decide
from asynctile.schedule.rates import Rates
from asynctile.schedule.schedule import Schedule
from asynctile.schedule.start import Start
from asynctile.storage.arena import Arena
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import Demand, align
from asynctile.storage.sizes import format_size

#: The free slots of each size that temporaries take in turn where operations run: enough for many cores to work side by side,
#: and so few that the slots may stay in the cores' caches.
APART = 16


def space_of(arenas: Sequence[Arena], asked: Sequence[Demand], *, spills: bool, prefetch: int, rates: Rates) -> Space:
    """Return the space in `arenas`, cut for the demands in `asked` on a device and on RAM, as `decide` takes it.

    spills: whether a disk is below RAM. prefetch: the depth. rates: of device and host.
    """
    top, ram = _cut(arenas[0], asked[0], APART), None
    if len(arenas) > 1:
        ram = _cut(arenas[1], asked[1])
    return Space(top, ram, PAGE if spills else None, prefetch, rates)


def schedule_for(program: Program, demand: Demand, tiers: Tiers) -> Schedule:
    """Return the schedule of `program` on `tiers`, which are cut for `demand`. Blocks. BudgetError if it does not fit there."""
    arenas = [tier.arena for tier in tiers.from_the_top()]
    return must_decide(program, space_on(tiers, demand), arenas, tiers.caps.demands(demand))


def schedule_from(start: Start, steady: Schedule, demand: Demand, tiers: Tiers) -> Schedule:
    """Return the schedule on `tiers` that begins at `start` and ends where `steady` begins. Blocks."""
    return arrive(steady, space_on(tiers, demand), start)


def space_on(tiers: Tiers, demand: Demand) -> Space:
    """Return the space on `tiers`, which are cut for `demand`."""
    arenas = [tier.arena for tier in tiers.from_the_top()]
    spills = tiers.spill is not None
    return space_of(arenas, tiers.caps.demands(demand), spills=spills, prefetch=tiers.prefetch, rates=tiers.rates)


def must_decide(program: Program, space: Space, arenas: Sequence[Arena], asked: Sequence[Demand]) -> Schedule:
    """Return the schedule of `program`; BudgetError if there is none."""
    schedule = decide(program, space)
    if schedule is None:
        limits = [f"{arena.argument} of {format_size(arena.cap)}" for arena in arenas if arena.cap is not None]
        caps = " and ".join(dict.fromkeys(limits))  # devices have equal caps
        raise BudgetError(f"{program.name} does not fit into {caps}: not all its tiles find a place; {arenas[0].remedy} or "
                          "choose a smaller tile", floor=asked[0].floor_nbytes)  # fmt: skip
    return schedule


def _cut(arena: Arena, demand: Demand, apart: float = math.inf) -> Cut:
    if arena.divided:
        return Cut(arena.alignment, arena.cap, {})
    return Cut(arena.alignment, None, _temporaries(demand, arena.alignment), apart)


def _temporaries(demand: Demand, alignment: int) -> Counter[int]:
    """Return, by size, how many slots `demand` has in addition to those of its standing tiles."""
    found = Counter(demand.exact)
    found.subtract(align(tile.nbytes, alignment) for tile in demand.standing)
    return +found
