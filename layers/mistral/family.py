"""Mistral as a family of models: LLaMA's layers with a configuration of its own."""

from __future__ import annotations

from dataclasses import replace

from asynctile.layers.llama.family import LLAMA
from asynctile.layers.mistral.config import MistralConfig

MISTRAL = replace(LLAMA, title="Mistral", config=MistralConfig)
