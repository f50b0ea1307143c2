"""Which tensors a GPT-2 has: their Hugging Face names, the axes that they are cut by, and what new ones are drawn from.

Covers describing them one after another, and counting them, so that a model of any size costs nothing to look at: a
config.json says a number, and whether there are tensors for it is for a file or a budget to show. Their tiles are
parameters.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from asynctile.layers.config import GPT2Config

#: Tensors of a block, and those before and behind all blocks.
BLOCK_TENSORS, OUTER_TENSORS = 12, 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """axes: names of the cuts in Tiling, rows first. decay, mean, std: as in Parameter."""

    name: str
    axes: tuple[str, ...]
    decay: bool = False
    mean: float = 0.0
    std: float = 0.0


def tensors(config: GPT2Config) -> Iterator[Tensor]:
    """Every tensor in the order of a forward pass."""
    std = config.initializer_range
    yield Tensor("transformer.wte.weight", ("vocab", "model"), decay=True, std=std)
    yield Tensor("transformer.wpe.weight", ("positions", "model"), decay=True, std=std)
    for layer in range(config.n_layer):
        yield from block_tensors(config, layer)
    yield from _layernorm("transformer.ln_f")


def block_tensors(config: GPT2Config, layer: int) -> Iterator[Tensor]:
    """The tensors of one block."""
    std = config.initializer_range
    # Each block adds two projections to the residual stream; GPT-2 keeps the sum's variance.
    projection = std / math.sqrt(2 * config.n_layer)
    prefix = f"transformer.h.{layer}"
    yield from _layernorm(f"{prefix}.ln_1")
    yield from _linear(f"{prefix}.attn.c_attn", "model", "sections", std)
    yield from _linear(f"{prefix}.attn.c_proj", "heads", "model", projection)
    yield from _layernorm(f"{prefix}.ln_2")
    yield from _linear(f"{prefix}.mlp.c_fc", "model", "hidden", std)
    yield from _linear(f"{prefix}.mlp.c_proj", "hidden", "model", projection)


def shapes(config: GPT2Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor."""
    sizes = {
        "vocab": config.vocab_size, "positions": config.block_size, "model": config.n_embd, "heads": config.n_embd,
        "sections": 3 * config.n_embd, "hidden": config.inner,
    }  # fmt: skip
    return ((tensor.name, tuple(sizes[axis] for axis in tensor.axes)) for tensor in tensors(config))


def tensor_count(config: GPT2Config) -> int:
    """How many tensors there are."""
    return BLOCK_TENSORS * config.n_layer + OUTER_TENSORS


def tile_count(config: GPT2Config, parts: Mapping[str, int]) -> int:
    """How many weight tiles there are, where axes are cut into so many parts."""
    outer = (parts["vocab"] + parts["positions"] + 2) * parts["model"]
    block = sum(math.prod(parts[axis] for axis in tensor.axes) for tensor in block_tensors(config, 0))
    return outer + config.n_layer * block


def _linear(name: str, rows: str, columns: str, std: float) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (rows, columns), decay=True, std=std)
    yield Tensor(f"{name}.bias", (columns,))


def _layernorm(name: str) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", ("model",), mean=1.0)
    yield Tensor(f"{name}.bias", ("model",))
