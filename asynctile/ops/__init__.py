"""The verbs: functions that turn tiles into operations, each with the contract its kernels keep.

Letters in shapes: R rows of a tile (tokens), C columns, K inner columns, g heads in a column tile, hs columns of one
head, V rows of a vocabulary tile. A row tile holds `seqs` whole sequences of R / seqs tokens, or a piece of one.
"""

from asynctile.ops.adamw import adamw, sum_squares
from asynctile.ops.attention import attention, attention_backward, attention_delta
from asynctile.ops.cross_entropy import cross_entropy, cross_entropy_backward
from asynctile.ops.elementwise import column_sums, copy, fill
from asynctile.ops.embedding import embed_positions, embed_positions_backward, embed_tokens, embed_tokens_backward
from asynctile.ops.gelu import gelu, gelu_backward
from asynctile.ops.gemm import gemm
from asynctile.ops.layernorm import layernorm, layernorm_backward, layernorm_gradients, layernorm_stats, layernorm_sums

__all__ = [
    "adamw", "attention", "attention_backward", "attention_delta", "column_sums", "copy", "cross_entropy",
    "cross_entropy_backward", "embed_positions", "embed_positions_backward", "embed_tokens", "embed_tokens_backward",
    "fill", "gelu", "gelu_backward", "gemm", "layernorm", "layernorm_backward", "layernorm_gradients",
    "layernorm_stats", "layernorm_sums", "sum_squares",
]  # fmt: skip
