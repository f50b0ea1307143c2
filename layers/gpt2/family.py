"""GPT-2 as a family of models: its `Architecture`."""

from __future__ import annotations

from asynctile.layers.architecture import Architecture
from asynctile.layers.block import PreNormBlock
from asynctile.layers.final import NormedHead
from asynctile.layers.gpt2 import embedding
from asynctile.layers.gpt2.attention import ATTENTION
from asynctile.layers.gpt2.config import GPT2Config
from asynctile.layers.gpt2.layernorm import LAYERNORM
from asynctile.layers.gpt2.mlp import FEED_FORWARD

BLOCK = PreNormBlock(norm=LAYERNORM, norm_1="h.{}.ln_1", attention=ATTENTION, norm_2="h.{}.ln_2", mlp=FEED_FORWARD)
#: Old files hold the causal mask of each block, and its value for masked scores.
GPT2 = Architecture(
    title="GPT-2", config=GPT2Config, embedding=embedding, block=BLOCK, head=NormedHead(LAYERNORM, "ln_f"),
    repeated={"lm_head.weight": "transformer.wte.weight"}, buffers=(".attn.bias", ".attn.masked_bias"),
    model="asynctile.layers.gpt2.model:GPT2",
)  # fmt: skip
