"""The embedding of tokens tile by tile, forward and backward, for every family.

If the head is tied, its part of the gradient is already there when the embedding's part is added. A single replica adds its
rows to the head's part. Several replicas make partials anew, and their sum is added to the head's (partials.py).
"""

from __future__ import annotations

from asynctile.layers.parameters import Parameter
from asynctile.layers.recording import Grid, Recording
from asynctile.ops import embed_tokens, embed_tokens_backward, fill


def forward(recording: Recording, weight: Parameter, x: Grid) -> None:
    """Add weight[token] to x (R, C) for all row tiles, visiting each weight tile once. The table may be bf16."""
    for v, (begin, _) in enumerate(weight.rows):
        for k in recording.columns:
            for row in recording.rows:
                operation = embed_tokens(recording.tokens[row.index], weight.compute[v, k], x[row.index, k], row=begin)
                recording.program.add(operation)


def backward(recording: Recording, weight: Parameter, dx: Grid) -> None:
    """Compute the gradient of the weight from dx (R, C); its update is the last one of the step. A frozen weight has none."""
    if not weight.trains:
        return
    gradients, add = recording.gradients, recording.program.add
    for v, (begin, _) in enumerate(weight.rows):
        for k in recording.columns:
            for rows in recording.rows.by_replica:
                dweight, begun = gradients.open(weight, v, k)
                if not begun:
                    add(fill(dweight, 0.0))
                for row in rows:
                    add(embed_tokens_backward(recording.tokens[row.index], dx[row.index, k], dweight, row=begin))
                gradients.settle(weight, rows[-1], v, k)
