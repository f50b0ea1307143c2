"""The shape of a Qwen2: `Qwen2Config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from asynctile.layers.guesses import answering
from asynctile.layers.llama.rotary_config import WINDOW, RotaryConfig, check_window


@answering
@dataclass(frozen=True, kw_only=True)
class Qwen2Config(RotaryConfig):
    """The shape of a Qwen2 or Qwen2.5 whose attention sees all earlier tokens. The defaults are those of transformers.

    ValueError for a setting out of range.
    """

    model_type: ClassVar[str] = "qwen2"
    class_name: ClassVar[str] = "Qwen2ForCausalLM"

    block_size: int = 32768
    """Length of the longest sequence, in tokens."""
    vocab_size: int = 151936
    """Number of different tokens."""
    intermediate_size: int = 22016
    """Width of the MLP, in columns."""
    num_key_value_heads: int | None = 32
    """Number of heads of keys and values; divides num_attention_heads; None: as many."""

    def has_bias(self, projection: str) -> bool:
        """Return whether a projection has a bias: those of queries, keys and values."""
        return projection in ("q_proj", "k_proj", "v_proj")

    def to_hf(self) -> dict[str, Any]:
        """Return the content of config.json of the Hugging Face Qwen2."""
        return {**super().to_hf(), "use_sliding_window": False}

    @classmethod
    def check_variant(cls, values: Mapping[str, Any]) -> None:
        """Raise ValueError for a sliding window that is in use and shorter than the longest sequence."""
        super().check_variant(values)
        check_window(cls, values, values.get("sliding_window", WINDOW) if values.get("use_sliding_window") else None)
