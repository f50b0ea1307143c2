"""The shape of a Qwen3: `Qwen3Config`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from asynctile.layers.guesses import answering
from asynctile.layers.qwen2.config import Qwen2Config


@answering
@dataclass(frozen=True, kw_only=True)
class Qwen3Config(Qwen2Config):
    """The shape of a Qwen3 without experts, whose attention sees all earlier tokens. The defaults are those of transformers.

    ValueError for a setting out of range.
    """

    model_type: ClassVar[str] = "qwen3"
    class_name: ClassVar[str] = "Qwen3ForCausalLM"

    head_dim: int | None = 128
    """Width of one attention head, in columns, an even number; None: hidden_size / num_attention_heads."""
    attention_bias: bool = False
    """Whether the projections of attention have biases."""

    def has_bias(self, projection: str) -> bool:
        """Return whether a projection has a bias."""
        return self.attention_bias and projection in ("q_proj", "k_proj", "v_proj", "o_proj")

    def attention_norms(self) -> Iterator[str]:
        """Yield the norms of queries and keys."""
        yield from ("q_norm", "k_norm")
