"""How the tiers of a share are cut, as far as a schedule depends on it."""

from __future__ import annotations

from collections import Counter

from asynctile.memory.tier import Tier
from asynctile.memory.tiers import Tiers
from asynctile.schedule.decide import Cut, Space
from asynctile.storage.container import ALIGNMENT as PAGE
from asynctile.storage.demand import Demand, align


def space_of(tiers: Tiers, demand: Demand) -> Space:
    """Of `tiers`, which are cut for `demand`."""
    cuts = [_cut(tiers, tier, demand) for tier in tiers.from_the_top()]
    ram = None if tiers.link is None else cuts[1]
    return Space(cuts[0], ram, None if tiers.spill is None else PAGE, tiers.prefetch, tiers.rates)


def _cut(tiers: Tiers, tier: Tier, demand: Demand) -> Cut:
    arena, spread = tier.arena, Counter[int]()
    if arena.in_turn and not arena.divided:
        wanted = tiers.caps.demand_on(tier, demand)
        spread = Counter(wanted.exact)
        spread.subtract(align(tile.nbytes, arena.alignment) for tile in wanted.standing)
    return Cut(arena.alignment, arena.cap if arena.divided else None, +spread)
