"""The floating-point operations of a step for each token, counted by arithmetic: those of the products that are recorded."""

from __future__ import annotations

from math import prod

import pytest

from asynctile.layers import LoRA
from asynctile.layers.config import Config
from asynctile.layers.layout import shapes
from asynctile.layers.step import parts_of, record
from asynctile.layers.tuning import WHOLE, Tuning
from tests.layers.adapting import EVERY, blocks
from tests.layers.families import CONFIGS, FAMILIES
from tests.layers.shapes import Shape
from tests.layers.training import NARROW

SHAPES = {"gpt2": blocks(4, NARROW), **FAMILIES}


def in_products(shape: Shape, tuning: Tuning) -> int:
    """Return the operations for each token in the matrix products of a step that keeps its activations.

    Backward computes the narrow side of each adapter again, which does not count.
    """
    parameters, tokens = shape.parameters().tuned(tuning), shape.batch * shape.length
    rows = parameters.tiling.rows(shape.batch, shape.length, shape.micro_batches)
    operations = record("step", parameters, rows, kept=parts_of(shape.config)).operations()
    again = sum(prod(item.shape) for item in parameters.adapters() if ".lora_A." in item.name)
    return sum(one.flops for one in operations if one.kernel.startswith("gemm")) // tokens - 2 * again


def of_vectors(config: Config, tuning: Tuning, lowest: int) -> int:
    """Return the operations that the count gives to biases, gains and shifts: 2 for each pass."""
    below = {tensor.name for layer in range(lowest) for tensor in config.block_tensors(layer)}
    vectors = [(name, shape[0]) for name, shape in shapes(config) if len(shape) == 1]
    return sum(2 * size * (1 + (name not in below) + tuning.trains(config, name)) for name, size in vectors)


@pytest.mark.parametrize(("name", "tuning", "lowest"), [
    ("gpt2", WHOLE, 0),
    ("gpt2", Tuning(freeze=("wte*", "*c_fc.weight")), 0),
    ("gpt2", Tuning(freeze=("w?e*", "h.[01].*")), 2),
    ("gpt2", Tuning(freeze=("w?e*", "h.*")), 4),
    ("gpt2", Tuning(LoRA(rank=3, targets=("h.2.mlp.c_fc", "h.3.attn.c_attn"))), 2),
    ("llama", WHOLE, 0),
    ("llama", Tuning(freeze=("lm_head*", "*embed*", "*.0.*")), 1),
    ("qwen2", WHOLE, 0),
    ("qwen2", Tuning(LoRA(rank=2, targets=EVERY["qwen2"])), 0),
    ("qwen3", Tuning(LoRA(rank=2, targets=EVERY["qwen3"])), 0),
])  # fmt: skip
def test_a_step_counts_the_products_that_it_computes(name: str, tuning: Tuning, lowest: int) -> None:
    shape = SHAPES[name]
    config, found = shape.config, tuning.flops_per_token(shape.config, 0)
    assert found - of_vectors(config, tuning, lowest) == in_products(shape, tuning)
    columns, layers = config.axes["heads"].size, config.n_layer
    assert tuning.flops_per_token(config, 9) == found + 9 * columns * (12 * layers - 8 * lowest)


@pytest.mark.parametrize("config", [NARROW.config, *CONFIGS.values()], ids=lambda config: config.model_type)
def test_a_model_that_is_trained_whole_has_the_usual_count(config: Config) -> None:
    assert WHOLE.flops_per_token(config, 40) == config.flops_per_token(40)
