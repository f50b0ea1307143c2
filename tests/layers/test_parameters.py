"""Parameters: Hugging Face's names and shapes, exact cover by tiles, initial values that do not depend on tiling."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.parameters import BLOCK, Parameters, initial_piece
from asynctile.layers.tiling import Tiling
from tests.counting import calls_of

CONFIG = GPT2Config(n_layer=2, n_head=4, n_embd=136, block_size=70, vocab_size=101)


@pytest.fixture(params=[8, 40, 64, 200])
def parameters(request: pytest.FixtureRequest) -> Parameters:
    return Parameters(CONFIG, Tiling(CONFIG, request.param))


def test_tiles_cover_each_tensor_once(parameters: Parameters) -> None:
    for parameter in parameters.values():
        seen = np.zeros(parameter.shape, int)
        for key, tile in parameter.weights.items():
            seen[parameter.index(*key)] += 1
            assert seen[parameter.index(*key)].shape == tile.shape
            assert parameter.exp_avg[key].shape == parameter.exp_avg_sq[key].shape == tile.shape
        assert (seen == 1).all(), parameter.name


def test_tiles_have_names(parameters: Parameters) -> None:
    names = [tile.name for tile in parameters.states()]
    assert len(names) == len(set(names))
    assert {"wte.weight[0,0]", "h.1.mlp.c_fc.weight[0,0].exp_avg", "ln_f.bias[0].exp_avg_sq"} <= set(names)


def test_query_key_and_value_never_share_a_tile(parameters: Parameters) -> None:
    d, hs = CONFIG.n_embd, CONFIG.head_size
    for start, stop in parameters.tiling["sections"]:
        assert start // d == (stop - 1) // d
        assert start % hs == stop % hs == 0


def test_only_matrices_decay(parameters: Parameters) -> None:
    assert all(parameter.decay == (len(parameter.shape) == 2) for parameter in parameters.values())


def test_initial_values_do_not_depend_on_the_tile(parameters: Parameters) -> None:
    for parameter in parameters.values():
        whole = initial_piece(parameter, tuple(slice(0, n) for n in parameter.shape), seed=3)
        for key in parameter.weights:
            index = parameter.index(*key)
            assert np.array_equal(initial_piece(parameter, index, seed=3), whole[index])


def test_initial_values_are_those_of_gpt2() -> None:
    parameters = Parameters(CONFIG, Tiling(CONFIG, 64))
    drawn = {}
    for name, parameter in parameters.items():
        drawn[name] = initial_piece(parameter, tuple(slice(0, n) for n in parameter.shape), seed=0)
        if parameter.decay:
            std = 0.02 / math.sqrt(2 * CONFIG.n_layer) if name.endswith("c_proj.weight") else 0.02
            assert drawn[name].std() == pytest.approx(std, rel=0.03)
            assert abs(drawn[name].mean()) < 4 * std / math.sqrt(drawn[name].size)
        else:
            assert (drawn[name] == (1.0 if "ln_" in name and name.endswith("weight") else 0.0)).all()
    wte = parameters["transformer.wte.weight"]
    assert not np.array_equal(initial_piece(wte, wte.index(0, 0), 0), initial_piece(wte, wte.index(0, 0), 1))
    one, other = (drawn[f"transformer.h.{layer}.mlp.c_fc.weight"] for layer in (0, 1))
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


def test_drawing_takes_few_calls_for_each_block() -> None:
    """Drawing the 124 million values of GPT-2 small takes seconds, so a single value must cost next to nothing."""
    wte = Parameters(GPT2Config(n_layer=1, vocab_size=2048), Tiling(GPT2Config()))["transformer.wte.weight"]
    _, calls = calls_of(initial_piece, wte, (slice(0, 2048), slice(0, 768)), 0)
    assert calls < 30 * (2048 // BLOCK) * (768 // BLOCK)
