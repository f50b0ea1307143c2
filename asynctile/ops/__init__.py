"""Verbs: functions that make operations on tiles. Each docstring is the contract that the kernels of the verb keep.

Letters for dtypes: T stands for float32 or bf16 (asynctile/program/precision.py), the same for every T of an operation, and so
does U. Tiles without a letter are float32; tokens and targets are int32. Kernels compute in float32 or wider whatever T and U
are. Those of the CPU have float32 only, except that `copy` and the embeddings also read bf16.

Letters for shapes: R rows of a tile (tokens), C columns, K inner columns, g heads in a column tile (of queries, where keys have
fewer heads, c), hs columns of one head, V rows of a vocabulary tile. A row tile holds `seqs` whole sequences of R / seqs tokens
each, or a piece of one.
"""

from asynctile.ops.adamw import adamw, adamw_bf16, sum_squares
from asynctile.ops.attention import attention, attention_backward, attention_backward_whole, attention_delta
from asynctile.ops.attention_page import attention_page
from asynctile.ops.cross_entropy import cross_entropy, cross_entropy_backward
from asynctile.ops.elementwise import add, column_sums, column_sums_copy, copy, fill, scale
from asynctile.ops.embedding import embed_positions, embed_positions_backward, embed_tokens, embed_tokens_backward
from asynctile.ops.gelu import gelu, gelu_and_backward
from asynctile.ops.gemm import gemm
from asynctile.ops.gemm_rows import gemm_rows
from asynctile.ops.layernorm import (
    layernorm,
    layernorm_backward,
    layernorm_gradients,
    layernorm_stats,
    layernorm_sums,
    layernorm_whole,
    layernorm_whole_backward,
)
from asynctile.ops.rmsnorm import (
    rmsnorm,
    rmsnorm_backward,
    rmsnorm_gradients,
    rmsnorm_heads,
    rmsnorm_heads_backward,
    rmsnorm_stats,
    rmsnorm_sums,
    rmsnorm_whole,
    rmsnorm_whole_backward,
)
from asynctile.ops.rope import rope, rope_rows
from asynctile.ops.swiglu import swiglu, swiglu_and_backward

__all__ = [
    "adamw", "adamw_bf16", "add", "attention", "attention_backward", "attention_backward_whole",
    "attention_delta", "attention_page", "column_sums", "column_sums_copy", "copy", "cross_entropy",
    "cross_entropy_backward", "embed_positions", "embed_positions_backward", "embed_tokens", "embed_tokens_backward",
    "fill", "gelu", "gelu_and_backward", "gemm", "gemm_rows", "layernorm", "layernorm_backward",
    "layernorm_gradients", "layernorm_stats", "layernorm_sums", "layernorm_whole", "layernorm_whole_backward", "rmsnorm",
    "rmsnorm_backward", "rmsnorm_gradients", "rmsnorm_heads", "rmsnorm_heads_backward", "rmsnorm_stats", "rmsnorm_sums",
    "rmsnorm_whole", "rmsnorm_whole_backward", "rope", "rope_rows", "scale", "sum_squares", "swiglu", "swiglu_and_backward",
]  # fmt: skip
