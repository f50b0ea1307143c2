"""The end of a model, after its last block: a norm, then the head (head.py)."""

from __future__ import annotations

from dataclasses import dataclass

from asynctile.layers import head
from asynctile.layers.norm import Norm
from asynctile.layers.recording import Grid, Recording


@dataclass(frozen=True)
class NormedHead:
    """The head behind a norm. title: of the norm."""

    norm: Norm
    title: str

    def logits(self, recording: Recording, x: Grid) -> None:
        """Fetch the logits of x (R, C)."""
        normed, _ = self.norm.forward(recording, recording.rows.tiles, x, self.title)
        head.logits(recording, normed)

    def losses(self, recording: Recording, x: Grid) -> None:
        """Report the losses of x (R, C)."""
        normed, _ = self.norm.forward(recording, recording.rows.tiles, x, self.title)
        head.losses(recording, normed)

    def forward_backward(self, recording: Recording, x: Grid, *, recompute: bool) -> Grid:
        """Report the losses of x (R, C), and return its gradient."""
        normed, stats = self.norm.forward(recording, recording.rows.tiles, x, self.title)
        dnormed = head.forward_backward(recording, normed, recompute=recompute)
        dx = recording.residual("dx")
        for rows in recording.rows.by_replica:
            self.norm.backward(recording, rows, x, stats, dnormed, self.title, dx)
        return dx
