"""What a family of models supplies: `Architecture`. Nothing that is common to models names a family; it asks this record.

Which there are is architectures.py, in what order their parts are recorded step.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asynctile.layers.config import Config
from asynctile.layers.recording import Grid, Recording
from asynctile.layers.rows import Row


class Embedding(Protocol):
    """Tokens to the residual stream (R, C): what is recorded first, and last of the backward pass."""

    def forward(self, recording: Recording) -> Grid:
        """The input of the first block."""

    def backward(self, recording: Recording, dx: Grid) -> None:
        """The gradients of its tensors, from that of its output."""


class Block(Protocol):
    """One block for the row tiles of one pass."""

    def forward(self, recording: Recording, rows: Sequence[Row], layer: int, x: Grid, out: Grid) -> Any:
        """out = block(x); returns what `backward` may have instead of `again`."""

    def again(self, recording: Recording, rows: Sequence[Row], layer: int, x: Grid) -> Any:
        """What `backward` needs of a block of which only the input was kept."""

    def backward(self, recording: Recording, rows: Sequence[Row], layer: int, kept: Any, dx: Grid) -> None:
        """dx, in place: from the gradient of the output to that of the input."""


class Head(Protocol):
    """The output of the last block, of all passes at once, to logits and losses."""

    def logits(self, recording: Recording, x: Grid) -> None:
        """Fetch all logits as outputs["logits"] of shape (batch length, vocabulary)."""

    def losses(self, recording: Recording, x: Grid) -> None:
        """Report the sum of the losses of each row tile as loss[r], and mark "loss" behind the last."""

    def forward_backward(self, recording: Recording, x: Grid, *, recompute: bool) -> Grid:
        """The same, and the gradients of its tensors; returns that of x."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A family of models.

    config: the class of its configurations, which say sizes, tensors and their Hugging Face names, how they are cut, and what
    stands in config.json. embedding, block, head: what records them, such as modules. repeated: names under which a file
    may repeat a tensor, or have it instead. block_buffers: how many tensors of a block files may have that hold no weights.
    """

    config: type[Config]
    embedding: Embedding
    block: Block
    head: Head
    repeated: Mapping[str, str] = field(default_factory=dict)
    block_buffers: int = 0
