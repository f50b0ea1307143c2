"""LLaMA as a family of models: its `Architecture`, which others share except for the configuration."""

from __future__ import annotations

from asynctile.layers.architecture import Architecture
from asynctile.layers.block import PreNormBlock
from asynctile.layers.final import NormedHead
from asynctile.layers.llama import embedding
from asynctile.layers.llama.attention import ATTENTION
from asynctile.layers.llama.config import LlamaConfig
from asynctile.layers.llama.mlp import GATED
from asynctile.layers.llama.rmsnorm import RMSNORM

BLOCK = PreNormBlock(
    norm=RMSNORM, norm_1="layers.{}.input_layernorm", attention=ATTENTION,
    norm_2="layers.{}.post_attention_layernorm", mlp=GATED,
)  # fmt: skip
#: Old files hold the frequencies of the rotary positions of each block.
LLAMA = Architecture(
    title="LLaMA", config=LlamaConfig, embedding=embedding, block=BLOCK, head=NormedHead(RMSNORM, "norm"),
    repeated={"lm_head.weight": "model.embed_tokens.weight"}, buffers=(".self_attn.rotary_emb.inv_freq",),
)  # fmt: skip
