"""Shapes that make every kind of ragged tile: model, batch and tile together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.config import Config
from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.machine import Work
from asynctile.layers.parameters import Parameters
from asynctile.layers.tiling import Tiling


@dataclass(frozen=True)
class Shape:
    config: Config
    tile: int
    batch: int
    length: int
    micro_batches: int = 1
    replicas: int = 1

    def parameters(self) -> Parameters:
        return Parameters(self.config, Tiling(self.config, self.tile))

    def work(self, **more: Any) -> Work:
        """Return the Work of one step of this shape. more: further fields of Work."""
        return Work(batch_size=self.batch, seq_len=self.length, micro_batches=self.micro_batches, replicas=self.replicas,
                    tile=self.tile, **more)  # fmt: skip

    def batch_of_tokens(self, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return tokens and targets (B, T); some targets are ignored."""
        random = np.random.default_rng(seed)
        tokens, targets = random.integers(0, self.config.vocab_size, (2, self.batch, self.length))
        targets[random.random(targets.shape) < 0.1] = -100
        targets[0, 0] = 1
        return tokens, targets


def shape(d: int, heads: int, vocab: int, block: int, tile: int, batch: int, length: int, **more: Any) -> Shape:
    parts = {name: more.pop(name, 1) for name in ("micro_batches", "replicas")}
    more = {"n_layer": 2, **more}
    config = GPT2Config(n_head=heads, n_embd=d, block_size=block, vocab_size=vocab, **more)
    return Shape(config, tile, batch, length, **parts)


SHAPES = {
    "one tile of everything": shape(24, 3, 50, 16, 128, 2, 16),
    "sequences cut, all ragged": shape(36, 3, 101, 50, 16, 2, 41, micro_batches=2),
    "several sequences in a tile": shape(40, 4, 67, 12, 32, 6, 10, micro_batches=2),
    "a head wider than the tile": shape(48, 2, 30, 40, 10, 2, 23),
    "one sequence of one token": shape(16, 2, 33, 9, 8, 1, 1),
    "heads in uneven groups, narrow MLP": shape(35, 7, 40, 20, 16, 4, 20, micro_batches=4, n_inner=21, n_layer=1),
    "tiles of one": shape(4, 2, 5, 4, 1, 2, 3, n_layer=1),
}
#: The same shapes without the parts that a wide MLP, a second block and other sequences only repeat: a tenth of the operations.
LIGHT = SHAPES | {
    "sequences cut, all ragged": shape(36, 3, 50, 50, 16, 2, 41, micro_batches=2, n_inner=40),
    "a head wider than the tile": shape(48, 2, 30, 40, 10, 1, 23, n_inner=13, n_layer=1),
    "heads in uneven groups, narrow MLP": shape(35, 7, 40, 20, 16, 2, 20, micro_batches=2, n_inner=21, n_layer=1),
    "tiles of one": shape(4, 2, 5, 4, 1, 2, 2, n_inner=3, n_layer=1),
}
