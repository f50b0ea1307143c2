"""The floor of a model: the smallest device memory that can train it.

It is the memory that the most demanding single operation needs at once, with full row tiles. So it depends on the tile and the
width, and not on the depth, the vocabulary, the batch or the length of sequences. A model that keeps matrices in bf16 has the
floor of one that does not, unless its bf16 tiles or the copies made of them need more.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from asynctile.layers.config import Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.layers.tuning import WHOLE, Tuning
from asynctile.program.grain import FINE, Grain
from asynctile.program.needs import demand_of
from asynctile.storage.demand import Demand


def floor_demand(
    config: Config, tile: int, grain: Grain = FINE, precision: str = "fp32", tuning: Tuning = WHOLE,
    stored: frozenset[str] = frozenset(),
) -> Demand:
    """Return the demand of one block's training step: `.floor_nbytes` is the floor, `.check(cap)` refuses a smaller cap.

    tuning, stored: as in Parameters.
    """
    return _of_one_block(dataclasses.replace(config, n_layer=1), tile, grain, precision, tuning.of_one_block(config), stored)


@lru_cache(maxsize=64)
def _of_one_block(
    config: Config, tile: int, grain: Grain, precision: str, tuning: Tuning, stored: frozenset[str]
) -> Demand:
    """Return the demand for a model of one block.

    Cached, because every model that is made or loaded asks for it, and one answer takes six recorded programs.
    """
    tiling = Tiling(config, tile, grain)
    tokens = tiling.row_tokens
    # Full row tiles: only sequences of one token fill them for every block_size. And half-full ones, whose slots differ.
    lengths = {1, min(config.block_size, tokens + 1), min(config.block_size, 2 * tokens)}
    plain = Parameters(config, tiling, precision, tuning)
    recorded = [("step", plain), ("step_clipped", plain)]
    if stored:  # a step updates none of them, but it may pass through all
        recorded.append(("gradients", Parameters(config, tiling, precision, tuning, stored)))
    demands = [
        demand_of([record(kind, parameters, tiling.rows(max(1, tokens // length), length))], parameters.states())
        for length in sorted(lengths)
        for kind, parameters in recorded
    ]
    hungriest = max(demands, key=lambda demand: demand.floor_nbytes)
    if len({len(demand.sizes) for demand in demands}) > 1:
        return hungriest
    sizes = tuple(map(max, zip(*(demand.sizes for demand in demands), strict=True)))
    floor = tuple(map(max, zip(*(demand.floor for demand in demands), strict=True)))
    return Demand(sizes, floor, hungriest.exact, hungriest.what)
