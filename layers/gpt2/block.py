"""One transformer block of GPT-2, forward and backward: x + attention(ln_1(x)), then + mlp(ln_2(...)).

Its halves are attention.py and mlp.py, each after a layernorm.py. step.py defines the order of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asynctile.layers.gpt2 import attention, layernorm, mlp
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row


@dataclass(frozen=True, slots=True)
class BlockActivations:
    """The activations that backward needs for one block and pass, by row tile.

    x: the block's input. middle: the residual stream between the halves. stats_1, stats_2: the statistics of the two layer
    norms. hidden: the MLP's hidden layer before GELU. stats_2 and hidden are None if backward recomputes them.
    """

    x: Grid
    stats_1: Grid
    attention: attention.AttentionActivations
    middle: Grid
    stats_2: Grid | None = None
    hidden: Grid | None = None


def forward(recording: Recording, rows: Sequence[Row], layer: int, x: Grid, out: Grid) -> BlockActivations:
    """Compute out = block(x); return the activations that backward may keep."""
    kept = again(recording, rows, layer, x)
    normed, stats_2 = layernorm.forward(recording, rows, kept.middle, f"h.{layer}.ln_2")
    hidden = mlp.forward(recording, rows, f"h.{layer}.mlp", normed, kept.middle, out)
    return replace(kept, stats_2=stats_2, hidden=hidden)


def again(recording: Recording, rows: Sequence[Row], layer: int, x: Grid) -> BlockActivations:
    """Recompute the block up to ln_2, which is as far as backward needs it."""
    normed, stats_1 = layernorm.forward(recording, rows, x, f"h.{layer}.ln_1")
    middle = recording.residual(f"h.{layer}.middle")
    attended = attention.forward(recording, rows, f"h.{layer}.attn", normed, x, middle)
    return BlockActivations(x, stats_1, attended, middle)


def backward(recording: Recording, rows: Sequence[Row], layer: int, kept: BlockActivations, dx: Grid) -> None:
    """Replace `dx`, the gradient of the block's output, by the gradient of its input, in place."""
    stats_2 = kept.stats_2
    if stats_2 is None:
        normed, stats_2 = layernorm.forward(recording, rows, kept.middle, f"h.{layer}.ln_2")
    else:
        normed = layernorm.again(recording, rows, kept.middle, stats_2, f"h.{layer}.ln_2")
    dnormed = recording.residual(f"h.{layer}.dln_2")
    mlp.backward(recording, rows, f"h.{layer}.mlp", kept.hidden, normed, dx, dnormed)
    layernorm.backward(recording, rows, kept.middle, stats_2, dnormed, f"h.{layer}.ln_2", dx)

    normed = layernorm.again(recording, rows, kept.x, kept.stats_1, f"h.{layer}.ln_1")
    dnormed = recording.residual(f"h.{layer}.dln_1")
    attention.backward(recording, rows, f"h.{layer}.attn", kept.attention, normed, dx, dnormed)
    layernorm.backward(recording, rows, kept.x, kept.stats_1, dnormed, f"h.{layer}.ln_1", dx)
