"""A transformer block with norms before its halves: x + attention(norm(x)), then + mlp(norm(...)), forward and backward.

A family supplies the norm, the attention and the MLP. step.py defines the order of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asynctile.layers.attention import Attention, AttentionActivations
from asynctile.layers.mlp import MLP, Hidden
from asynctile.layers.norm import Norm
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row


@dataclass(frozen=True, slots=True)
class BlockActivations:
    """The activations that backward needs for one block and pass, by row tile.

    x: the block's input. middle: the residual stream between the halves. stats_1, stats_2: the statistics of the two norms.
    hidden: the MLP's hidden layer. stats_2 and hidden are None if backward recomputes them.
    """

    x: Grid
    stats_1: Grid
    attention: AttentionActivations
    middle: Grid
    stats_2: Grid | None = None
    hidden: Hidden | None = None


@dataclass(frozen=True, kw_only=True)
class PreNormBlock:
    """A block by its parts. norm_1, norm_2: the titles of the two norms, with {} for the block's number."""

    norm: Norm
    norm_1: str
    attention: Attention
    norm_2: str
    mlp: MLP

    def forward(
        self, recording: Recording, rows: Sequence[Row], layer: int, x: Grid, out: Grid
    ) -> BlockActivations:
        """Compute out = block(x); return the activations that backward may keep."""
        kept = self.again(recording, rows, layer, x)
        normed, stats_2 = self.norm.forward(recording, rows, kept.middle, self.norm_2.format(layer))
        hidden = self.mlp.forward(recording, rows, layer, normed, kept.middle, out)
        return replace(kept, stats_2=stats_2, hidden=hidden)

    def again(self, recording: Recording, rows: Sequence[Row], layer: int, x: Grid) -> BlockActivations:
        """Recompute the block up to the second norm, which is as far as backward needs it."""
        normed, stats_1 = self.norm.forward(recording, rows, x, self.norm_1.format(layer))
        middle = recording.residual(f"h.{layer}.middle")
        attended = self.attention.forward(recording, rows, layer, normed, x, middle)
        return BlockActivations(x, stats_1, attended, middle)

    def backward(
        self, recording: Recording, rows: Sequence[Row], layer: int, kept: BlockActivations, dx: Grid
    ) -> None:
        """Replace `dx`, the gradient of the block's output, by the gradient of its input, in place."""
        norm, norm_1, norm_2 = self.norm, self.norm_1.format(layer), self.norm_2.format(layer)
        stats_2 = kept.stats_2
        if stats_2 is None:
            normed, stats_2 = norm.forward(recording, rows, kept.middle, norm_2)
        else:
            normed = norm.again(recording, rows, kept.middle, stats_2, norm_2)
        dnormed = recording.residual(f"h.{layer}.dln_2")
        self.mlp.backward(recording, rows, layer, kept.hidden, normed, dx, dnormed)
        norm.backward(recording, rows, kept.middle, stats_2, dnormed, norm_2, dx)

        normed = norm.again(recording, rows, kept.x, kept.stats_1, norm_1)
        dnormed = recording.residual(f"h.{layer}.dln_1")
        self.attention.backward(recording, rows, layer, kept.attention, normed, dx, dnormed)
        norm.backward(recording, rows, kept.x, kept.stats_1, dnormed, norm_1, dx)
