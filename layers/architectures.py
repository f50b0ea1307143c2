"""The families of models that there are, GPT-2 the only one, and which of them a configuration belongs to.

What a family supplies is architecture.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asynctile.layers import block, embedding, final
from asynctile.layers.architecture import Architecture
from asynctile.layers.config import Config
from asynctile.layers.gpt2_config import GPT2Config
from asynctile.storage.input import shown

#: Old files have attn.bias and attn.masked_bias in each block.
GPT2 = Architecture(
    config=GPT2Config, embedding=embedding, block=block, head=final,
    repeated={"lm_head.weight": "transformer.wte.weight"}, block_buffers=2,
)  # fmt: skip
#: By what config.json calls them.
ARCHITECTURES = {architecture.config.model_type: architecture for architecture in (GPT2,)}


def architecture_of(config: Config) -> Architecture:
    """The family that a configuration is of."""
    return ARCHITECTURES[config.model_type]


def config_from_hf(values: Mapping[str, Any]) -> Config:
    """The configuration in the content of a config.json; ValueError on a family or a variant that is not computed here."""
    kind = values.get("model_type", GPT2Config.model_type)  # it is older than the others' habit to say it
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"config.json says model_type {shown(kind)}; only {', '.join(map(repr, ARCHITECTURES))} can be loaded")
    return ARCHITECTURES[kind].config.from_hf(values)
