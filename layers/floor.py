"""The floor of a model: the smallest device memory that trains it.

It is what the hungriest single operation needs at once, with full row tiles: so it depends on the tile and the width, not
on the depth, the vocabulary, the batch or the length of sequences.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from asynctile.layers.config import Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from asynctile.storage.demand import Demand


def floor_demand(config: Config, tile: int, grain: Grain = FINE, precision: str = "fp32") -> Demand:
    """What one block's training step demands; `.floor_nbytes` is the floor, `.check(cap)` refuses less."""
    return _of_one_block(dataclasses.replace(config, n_layer=1), tile, grain, precision)


@lru_cache(maxsize=64)
def _of_one_block(config: Config, tile: int, grain: Grain, precision: str) -> Demand:
    """Kept, for it is asked again for every model that is made or loaded: six programs are recorded for one answer."""
    parameters = Parameters(config, Tiling(config, tile, grain), precision)
    tokens = parameters.tiling.row_tokens
    # Full row tiles, which only tokens of one fill for every block_size; and half full ones, whose slots are cut otherwise.
    lengths = {1, min(config.block_size, tokens + 1), min(config.block_size, 2 * tokens)}
    demands = [
        demand_of([record(kind, parameters, parameters.tiling.rows(max(1, tokens // length), length))], parameters.states())
        for length in sorted(lengths)
        for kind in ("step", "step_clipped")
    ]
    hungriest = max(demands, key=lambda demand: demand.floor_nbytes)
    if len({len(demand.sizes) for demand in demands}) > 1:
        return hungriest
    sizes = tuple(map(max, zip(*(demand.sizes for demand in demands), strict=True)))
    floor = tuple(map(max, zip(*(demand.floor for demand in demands), strict=True)))
    return Demand(sizes, floor, hungriest.exact, hungriest.what)
