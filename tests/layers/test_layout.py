"""The size of a model by arithmetic equals that of its tiles, and computing it takes no memory whatever the size."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile import Engine
from asynctile.errors import BudgetError
from asynctile.layers import GPT2, GPT2Config
from asynctile.layers.config import MOST
from asynctile.layers.layout import shapes, tensor_count
from asynctile.layers.machine import Machine, Work
from asynctile.layers.parameters import Parameters
from asynctile.layers.plan import plan_step
from asynctile.layers.tiling import MOST_TILES, Tiling
from tests.laws import examples

#: Each of these in a config.json makes a model so large that no list of its parts should be made.
HUGE: list[dict[str, Any]] = [
    {"n_layer": 10**9}, {"vocab_size": MOST}, {"block_size": MOST}, {"n_embd": 10**9, "n_head": 1}, {"n_inner": MOST},
    {"n_layer": MOST, "n_embd": MOST, "n_head": 1, "vocab_size": MOST, "block_size": MOST, "n_inner": MOST},
]  # fmt: skip


@examples(20)
@given(st.data())
def test_the_counts_are_those_of_the_tensors_and_tiles(data: st.DataObject) -> None:
    heads = data.draw(st.sampled_from([1, 2, 3]))
    config = GPT2Config(
        n_layer=data.draw(st.integers(1, 3)), n_head=heads, n_embd=heads * data.draw(st.integers(1, 40)),
        block_size=data.draw(st.integers(1, 70)), vocab_size=data.draw(st.integers(1, 90)),
        n_inner=data.draw(st.none() | st.integers(1, 90)),
    )  # fmt: skip
    tiling = Tiling(config, data.draw(st.integers(1, 100)))
    parameters = Parameters(config, tiling)
    assert tensor_count(config) == len(parameters)
    assert list(shapes(config)) == [(name, parameter.shape) for name, parameter in parameters.items()]
    # There may be fewer parts after rounding to whole cache lines.
    assert tiling.count >= sum(len(parameter.weights) for parameter in parameters.values()) > tiling.count // 2


def within(nbytes: int) -> Any:
    class Within:
        def __enter__(self) -> None:
            tracemalloc.start()

        def __exit__(self, *_: object) -> None:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < nbytes

    return Within()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("changes", HUGE, ids=str)
async def test_an_absurdly_large_model_is_refused_before_lists_are_made_of_it(changes: dict[str, Any]) -> None:
    config = GPT2Config(**{"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 256, "block_size": 32, **changes})
    async with Engine("cpu") as engine:
        with within(1 << 20):
            assert len(list(islice(shapes(config), 10))) == 10
            for tile in (None, 1, 512):
                with pytest.raises(ValueError, match=rf"tiles of edge \d+, expected at most {MOST_TILES:,}; choose"):
                    await GPT2.create(engine, config, tile=tile)
                with pytest.raises(ValueError, match="expected at most"):
                    plan_step(config, Work(batch_size=1, seq_len=8, tile=tile), Machine(device="cpu"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("spill", [False, True])
async def test_a_model_that_fits_nowhere_is_refused_before_its_tiles_are_made(tmp_path: Any, spill: bool) -> None:
    config = GPT2Config(n_layer=2000, n_head=8, n_embd=512, vocab_size=256, block_size=32)
    options = {"spill": tmp_path, "spill_limit": "64MiB"} if spill else {}
    async with Engine("cpu", host_memory="1GiB", **options) as engine:
        sentence = r"tiles of 23\.\d+ GiB in all must be kept, but there is only 1\.00 GiB of RAM"
        with within(4 << 20), pytest.raises(BudgetError, match=sentence) as caught:
            await GPT2.create(engine, config, tile=256)
        assert caught.value.floor == 4 * config.parameter_count - spill * (64 << 20)
        assert engine.statistics().operations == 0


def test_a_large_but_sane_model_can_be_described() -> None:
    config = GPT2Config(n_layer=96, n_head=96, n_embd=12288, block_size=2048)  # 175 billion parameters
    assert 600_000 < Tiling(config).count < MOST_TILES
