"""The updates of several nodes: the share that each makes on its host, and the tiles of all shares. Pure.

The node that owns a weight tile updates it, on its device or on its host. Each node tells the others what it wishes for its own
tiles, because all record one program. Under "auto" the wish is found from the part of node 0, which stands for the part of each
node: all carry nearly the same rows and own nearly the same bytes. So nodes that are alike wish alike, and a plan of node 0
knows what all of them do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from asynctile.layers.parameters import Parameters
from asynctile.layers.update_placement import spread, tiles_to_update_on_host, updates_of_matrices
from asynctile.program.needs import demand_of
from asynctile.program.program import Program
from asynctile.program.spread import joined
from asynctile.schedule.rates import Rates
from asynctile.storage.tile import Tile

#: The wishes to update all of a node's tiles on its host, vectors too, and none of them. Any other wish is the share of its
#: matrices, such as "3/8".
ALL, NONE = "host", "0"


def wish_for(part: Program, standing: Iterable[Tile], device_memory: int | None, rates: Rates) -> str:
    """Return the wish by which a step takes the least time.

    part: of node 0, with every update on its devices. standing: the tiles that stand on node 0. device_memory: the caps of the
    devices of a node together, None for none. rates: of these devices together.
    """
    if device_memory is None:
        return NONE
    program = joined(part)
    chosen = tiles_to_update_on_host(program, demand_of([program], standing), device_memory, rates)
    return str(Fraction(len(chosen), len(updates_of_matrices(program)))) if chosen else NONE


def tiles_on_host(parameters: Parameters, homes: Mapping[Tile, int], wishes: Sequence[str]) -> frozenset[Tile]:
    """Return the weight tiles that nodes update on their hosts, those of each node spread evenly over the model.

    homes: the node of each moment. wishes: by node.
    """
    found = set[Tile]()
    for node, wish in enumerate(wishes):
        own = [item.weights[key] for item in parameters.trained()
               for key, moment in item.exp_avg.items() if homes[moment] == node]  # fmt: skip
        if wish == ALL:
            found.update(own)
        else:
            matrices = [tile for tile in own if len(tile.shape) == 2]
            found.update(matrices[index] for index in spread(int(Fraction(wish) * len(matrices)), len(matrices)))
    return frozenset(found)
