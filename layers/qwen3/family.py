"""Qwen3 as a family of models: LLaMA's layers with a configuration of its own."""

from __future__ import annotations

from dataclasses import replace

from asynctile.layers.llama.family import LLAMA
from asynctile.layers.qwen3.config import Qwen3Config

QWEN3 = replace(LLAMA, title="Qwen3", config=Qwen3Config)
