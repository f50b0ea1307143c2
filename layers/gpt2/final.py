"""The end of a GPT-2, after its last block: ln_f, then the tied head (head.py)."""

from __future__ import annotations

from asynctile.layers import head
from asynctile.layers.gpt2 import layernorm
from asynctile.layers.recording import Grid, Recording

LN_F = "ln_f"


def logits(recording: Recording, x: Grid) -> None:
    """Fetch the logits of x (R, C)."""
    normed, _ = layernorm.forward(recording, recording.rows.tiles, x, LN_F)
    head.logits(recording, normed)


def losses(recording: Recording, x: Grid) -> None:
    """Report the losses of x (R, C)."""
    normed, _ = layernorm.forward(recording, recording.rows.tiles, x, LN_F)
    head.losses(recording, normed)


def forward_backward(recording: Recording, x: Grid, *, recompute: bool) -> Grid:
    """Report the losses of x (R, C), and return its gradient."""
    normed, stats = layernorm.forward(recording, recording.rows.tiles, x, LN_F)
    dnormed = head.forward_backward(recording, normed, recompute=recompute)
    dx = recording.residual("dx")
    for rows in recording.rows.by_replica:
        layernorm.backward(recording, rows, x, stats, dnormed, LN_F, dx)
    return dx
