"""Qwen2 as a family of models: LLaMA's layers with a configuration of its own."""

from __future__ import annotations

from dataclasses import replace

from asynctile.layers.llama.family import LLAMA
from asynctile.layers.qwen2.config import Qwen2Config

QWEN2 = replace(LLAMA, title="Qwen2", config=Qwen2Config)
