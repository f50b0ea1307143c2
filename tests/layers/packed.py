"""Shapes whose sequences hold several examples, and what these examples have one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers import Trainer
from tests.layers.families import FAMILIES
from tests.layers.shapes import SHAPES, Shape

Array = NDArray[Any]


@dataclass(frozen=True)
class PackedShape(Shape):
    """A shape whose batches have positions: examples of all lengths, one token and whole sequences included."""

    def batch_of_tokens(self, seed: int = 0) -> Any:
        """Return tokens, targets and positions (B, T)."""
        tokens, targets = super().batch_of_tokens(seed)
        random = np.random.default_rng([seed, 1])
        return tokens, targets, np.stack([positions_of(random, self.length) for _ in range(self.batch)])


def packed(shape: Shape) -> PackedShape:
    """Return the same shape with several examples a sequence."""
    return PackedShape(shape.config, shape.tile, shape.batch, shape.length, shape.micro_batches, shape.replicas)


PACKED = {name: packed(shape) for name, shape in (SHAPES | FAMILIES).items()}


def positions_of(random: np.random.Generator, length: int) -> Array:
    """Return the positions of a sequence of examples by chance."""
    starts = np.flatnonzero(np.r_[True, random.random(length - 1) < random.choice([0.05, 0.2, 0.6])])
    return np.arange(length) - np.repeat(starts, np.diff(np.r_[starts, length]))


def examples_of(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield the arrays of each example, (1, n). arrays: (B, T), positions last."""
    for rows in zip(*arrays, strict=True):
        cuts = np.flatnonzero(rows[-1] == 0)[1:]
        for parts in zip(*(np.split(row, cuts) for row in rows), strict=True):
            yield tuple(part[None] for part in parts)


async def one_by_one(trainer: Trainer, tokens: Array, targets: Array, positions: Array) -> tuple[float, dict[str, Array]]:
    """Return the loss and the gradients of a batch from those of its examples alone, weighted by their targets."""
    loss, whole, gradients = 0.0, int((targets != -100).sum()), {}
    for ids, wanted, _ in examples_of(tokens, targets, positions):
        if share := int((wanted != -100).sum()) / whole:
            loss += share * await trainer.model.loss(ids, wanted)
            for name, gradient in (await trainer.gradients(ids, wanted)).items():
                gradients[name] = gradients.get(name, 0) + share * gradient.astype(np.float64)
    return loss, gradients
