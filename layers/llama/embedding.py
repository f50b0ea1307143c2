"""The embedding of tokens alone: positions come in with attention (rotation.py)."""

from __future__ import annotations

from asynctile.layers import token_embedding
from asynctile.layers.recording import Grid, Recording
from asynctile.ops import fill

EMBED_TOKENS = "embed_tokens.weight"


def forward(recording: Recording) -> Grid:
    """Compute x (R, C) = embed_tokens[token] for all row tiles."""
    x = recording.residual("h.0.x")
    for k in recording.columns:
        for row in recording.rows:
            recording.program.add(fill(x.new(row, k), 0.0))
    token_embedding.forward(recording, recording.parameters.titled(EMBED_TOKENS), x)
    return x


def backward(recording: Recording, dx: Grid) -> None:
    """Compute the gradient of embed_tokens."""
    token_embedding.backward(recording, recording.parameters.titled(EMBED_TOKENS), dx)
