"""The shape of a LLaMA: `LlamaConfig`. rotary_config.py has what it shares with Mistral and Qwen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from asynctile.layers.guesses import answering
from asynctile.layers.llama.rotary_config import RotaryConfig


@answering
@dataclass(frozen=True, kw_only=True)
class LlamaConfig(RotaryConfig):
    """The shape of a LLaMA (1, 2, 3 and those built alike). The defaults are those of transformers.

    ValueError for a setting out of range.
    """

    model_type: ClassVar[str] = "llama"
    class_name: ClassVar[str] = "LlamaForCausalLM"
    published: ClassVar[Mapping[str, Any]] = {"bos_token_id": 1, "eos_token_id": 2}

    attention_bias: bool = False
    """Whether the projections of attention have biases."""
    mlp_bias: bool = False
    """Whether the projections of the MLP have biases."""

    def has_bias(self, projection: str) -> bool:
        """Return whether a projection has a bias."""
        return self.mlp_bias if projection in ("gate_proj", "up_proj", "down_proj") else self.attention_bias
