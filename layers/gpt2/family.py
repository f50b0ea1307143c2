"""GPT-2 as a family of models: its `Architecture`."""

from __future__ import annotations

from asynctile.layers.architecture import Architecture
from asynctile.layers.gpt2 import block, embedding, final
from asynctile.layers.gpt2.config import GPT2Config

#: The two buffers of a block are attn.bias and attn.masked_bias, which old files contain.
GPT2 = Architecture(
    config=GPT2Config, embedding=embedding, block=block, head=final,
    repeated={"lm_head.weight": "transformer.wte.weight"}, block_buffers=2,
)  # fmt: skip
