"""The fewest bytes that any order of evictions must load."""

from __future__ import annotations

from typing import Any

import pytest

from asynctile.layers import GPT2Config
from asynctile.layers.parameters import Parameters
from asynctile.layers.step import record
from asynctile.layers.tiling import Tiling
from asynctile.measure.simulate import simulate
from asynctile.program.needs import demand_of


@pytest.mark.parametrize("update", ["device", "host"])
def test_the_yardstick_for_bytes_is_below_what_the_engine_loads_and_near_it(bench: Any, update: str) -> None:
    config = GPT2Config(n_layer=3, n_head=2, n_embd=64, block_size=64, vocab_size=200)
    parameters = Parameters(config, Tiling(config, 32))
    rows, standing = parameters.tiling.rows(4, 64), list(parameters.states())
    on_host = frozenset(standing) if update == "host" else frozenset[Any]()
    program = record("step", parameters, rows, on_host=on_host)
    cap = config.states_nbytes // 3
    loaded = simulate(program, standing, device_memory=cap).uploaded_nbytes
    least = bench("optimum").min_loads(program, demand_of([program], standing).divide(cap, "device_memory"))
    assert 0 < least <= loaded < 1.1 * least
