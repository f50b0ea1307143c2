"""The demand of a program on each tier, from the top tier down. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asynctile.storage.arena import Arena
from asynctile.storage.demand import Demand


def demands(demand: Demand, arenas: Sequence[Arena], foreign: Mapping[int, int] | None = None) -> tuple[Demand, ...]:
    """Return one demand for each tier, from the top down.

    arenas: of RAM alone, or of a device and the RAM below it. foreign: other tiles that RAM must hold, {size: count}.
    """
    top = demand.rounded(arenas[0].alignment)
    if len(arenas) == 1:
        return (top.alone(),)
    ram = arenas[-1]
    return top, demand.rounded(ram.alignment).passing(in_turn=has_turns(demand, ram, foreign))


def has_turns(demand: Demand, ram: Arena, foreign: Mapping[int, int] | None = None) -> bool:
    """Return whether RAM below a device has room for the extra slots `in_turn` of the demand."""
    return ram.keeps_all(demand.rounded(ram.alignment).passing(in_turn=True), foreign)
