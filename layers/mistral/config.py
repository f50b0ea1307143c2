"""The shape of a Mistral: `MistralConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from asynctile.layers.guesses import answering
from asynctile.layers.llama.rotary_config import WINDOW, RotaryConfig, check_window


@answering
@dataclass(frozen=True, kw_only=True)
class MistralConfig(RotaryConfig):
    """The shape of a Mistral whose attention sees all earlier tokens. The defaults are those of transformers.

    ValueError for a setting out of range.
    """

    model_type: ClassVar[str] = "mistral"
    class_name: ClassVar[str] = "MistralForCausalLM"
    published: ClassVar[Mapping[str, Any]] = {"bos_token_id": 1, "eos_token_id": 2}

    block_size: int = 131072
    """Length of the longest sequence, in tokens."""
    intermediate_size: int = 14336
    """Width of the MLP, in columns."""
    num_key_value_heads: int | None = 8
    """Number of heads of keys and values; divides num_attention_heads; None: as many."""

    def to_hf(self) -> dict[str, Any]:
        """Return the content of config.json of the Hugging Face Mistral."""
        return {**super().to_hf(), "sliding_window": None}

    @classmethod
    def check_variant(cls, values: Mapping[str, Any]) -> None:
        """Raise ValueError for a sliding window that is shorter than the longest sequence."""
        super().check_variant(values)
        check_window(cls, values, values.get("sliding_window", WINDOW))
