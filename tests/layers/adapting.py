"""Adapters whose two matrices are random, for tests: as whole tensors, and on models of the engine."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile import Engine
from asynctile.layers import AdamW, LoRA, Model, Trainer
from asynctile.layers.config import Config, Tensor, lengths_of
from asynctile.layers.lora import PREFIX, RANK
from asynctile.layers.model import model_state_of
from asynctile.share import runtime_of
from tests.layers.families import FAMILIES
from tests.layers.shapes import Shape
from tests.layers.training import OPTIMIZER, RAGGED, Outcome, lively, outcome_of

Array = NDArray[Any]
Tensors = Mapping[str, Array]

#: Every linear layer of a block, by family.
EVERY = {
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    **dict.fromkeys(FAMILIES, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
}
def blocks(count: int, shape: Shape, **more: Any) -> Shape:
    """Return the shape with another number of blocks. more: further fields."""
    return replace(shape, config=replace(shape.config, n_layer=count), **more)


#: Models of one block that are cut everywhere: blocks are alike.
SHAPES = {"gpt2": RAGGED, **{name: blocks(1, shape) for name, shape in FAMILIES.items()}}


def lora_of(config: Config, **more: Any) -> LoRA:
    """Return adapters of every linear layer. Their scaling, 2.5 / 3, is no power of two."""
    return LoRA(**{"rank": 3, "alpha": 2.5, "targets": EVERY[config.model_type]} | more)


def shape_of(config: Config, lora: LoRA, tensor: Tensor) -> tuple[int, ...]:
    sizes = lengths_of(config) | {RANK: lora.rank}
    return tuple(sizes[axis] for axis in tensor.axes)


def random_adapter(config: Config, lora: LoRA) -> dict[str, Array]:
    """Return random values of the adapters' tensors, whole, by name."""
    found = {}
    for tensor in lora.tensors(config):
        draw = np.random.default_rng(zlib.crc32(tensor.name.encode()))
        found[tensor.name] = np.float32(0.3) * draw.standard_normal(shape_of(config, lora, tensor), np.float32)
    return found


def merged(config: Config, lora: LoRA, weights: Tensors, adapter: Tensors) -> dict[str, Array]:
    """Return the weights of the model without adapters that computes the same: W + scaling B A, rounded to float32."""
    found = dict(weights)
    for tensor in lora.layers(config):
        layer = PREFIX + tensor.name.removesuffix(".weight")
        a, b = (adapter[f"{layer}.{name}.weight"].astype(np.float64) for name in ("lora_A", "lora_B"))
        added = lora.scaling * (b @ a)
        found[tensor.name] = (weights[tensor.name] + (added if tensor.transposed else added.T)).astype(np.float32)
    return found


async def adapted(engine: Engine, shape: Shape, lora: LoRA) -> Model:
    """Create a lively model with random adapters."""
    model = await lively(engine, shape)
    values = random_adapter(shape.config, lora)
    state = model_state_of(model)
    await runtime_of(engine).call(
        state.adapt(lora, lambda parameter, key: values[parameter.name][parameter.index(*key)]))
    return model


async def adapted_outcome(
    shape: Shape,
    *,
    lora: LoRA | None = None,
    steps: int = 2,
    device: str = "emulated",
    engine_options: dict[str, Any] | None = None,
    prepare: Callable[[Engine], None] = lambda _: None,
    update: str = "device",
    optimizer: AdamW = OPTIMIZER,
    **options: Any,
) -> Outcome:
    """Train random adapters of every linear layer, in an engine of its own. update, options: of Trainer."""
    async with Engine(device, **(engine_options or {})) as engine:
        prepare(engine)
        model = await adapted(engine, shape, lora or lora_of(shape.config))
        trainer = Trainer(model, optimizer, micro_batches=shape.micro_batches, update=update, **options)
        return await outcome_of(engine, trainer, shape, steps)
