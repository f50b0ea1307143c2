"""What a demand asks of each tier. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand


def demands(demand: Demand, arenas: Sequence[Arena], foreign: Mapping[int, int] | None = None) -> tuple[Demand, ...]:
    """From the top down. arenas: of RAM, or of a device and the RAM below it. foreign: what else RAM is to hold, by size."""
    top = demand.rounded(arenas[0].alignment)
    if len(arenas) == 1:
        return (top.alone(),)
    ram = arenas[-1]
    return top, demand.rounded(ram.alignment).passing(in_turn=has_turns(demand, ram, foreign))


def has_turns(demand: Demand, ram: Arena, foreign: Mapping[int, int] | None = None) -> bool:
    """Whether RAM below a device has room for slots that what comes down takes in turn."""
    return ram.keeps_all(demand.rounded(ram.alignment).passing(in_turn=True), foreign)
