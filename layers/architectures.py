"""The known families of models, and the family of a given configuration.

architecture.py defines what a family supplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asynctile.layers.architecture import Architecture
from asynctile.layers.config import Config
from asynctile.layers.foreign import check_fields
from asynctile.layers.gpt2.family import GPT2
from asynctile.layers.llama.family import LLAMA
from asynctile.layers.mistral.config import MistralConfig
from asynctile.layers.qwen2.config import Qwen2Config
from asynctile.layers.qwen3.config import Qwen3Config
from asynctile.storage.input import shown

#: Families with LLaMA's layers and configurations of their own.
MISTRAL = replace(LLAMA, title="Mistral", config=MistralConfig)
QWEN2 = replace(LLAMA, title="Qwen2", config=Qwen2Config)
QWEN3 = replace(LLAMA, title="Qwen3", config=Qwen3Config)
#: Families by `model_type`, as config.json names them.
ARCHITECTURES = {architecture.config.model_type: architecture for architecture in (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)}


def architecture_of(config: Config) -> Architecture:
    """Return the family that a configuration belongs to."""
    return ARCHITECTURES[config.model_type]


def config_from_hf(values: Mapping[str, Any]) -> Config:
    """Return the configuration that the content of a config.json describes.

    ValueError for an unknown family, or for a variant that is not implemented here.
    """
    check_fields(values)
    kind = values.get("model_type", GPT2.config.model_type)  # old GPT-2 files do not have the key
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(map(repr, ARCHITECTURES))
        raise ValueError(f"config.json says model_type {shown(kind)}; only {known} can be loaded, choose one of these")
    return ARCHITECTURES[kind].config.from_hf(values)
