"""One small call of every verb, in float32 or bf16. For all devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kernels.values import poison, random
from tests.verbs import VERBS

#: Arrays, parameters, and whether a number is reported.
Call = tuple[list[np.ndarray], tuple[Any, ...], bool]
R, C = 70, 264
#: Sequences, tokens of each, heads, columns of a head.
ATTENTION = (2, 96, 2, 64)
#: As LLaMA 3.1 has it.
ROTATION = (500000.0, 8.0, 1.0, 4.0, 8192.0)


def every_call(dtype: str) -> dict[str, Call]:
    """Return the call of each verb."""
    return calls(dtype) | attention(dtype)


def calls(dtype: str) -> dict[str, Call]:
    """Return the call of each verb but those of attention of sequences."""
    x, y = random(1, R, C), random(2, R, C)
    row, head, pair, wide = random(4, C), random(16, C // 3), np.abs(random(5, R, 2)), np.abs(random(6, R, 3))
    tokens = np.random.default_rng(7).integers(0, 90, R).astype(np.int32)
    typed, square = random(8, R, C, dtype=dtype), random(10, C, C, dtype=dtype)
    hyper = np.abs(random(9, 9))
    out, page = poison(R, C, dtype=dtype), random(15, 40, C, dtype=dtype)
    placed, owners = np.array([(r % 3, r) for r in range(R)], np.int32).reshape(-1), np.array([0, 0, 1, 31], np.int32)
    return {
        "copy": ([x, out], (), False),
        "add": ([x, y], (), False),
        "fill": ([out], (0.5,), False),
        "scale": ([typed.copy()], (0.3,), False),
        "column_sums": ([typed, row], (True,), False),
        "column_sums_copy": ([x, row, poison(R, C, dtype="bf16")], (True,), False),
        "gemm": ([typed, square, out], (False, False, False), False),
        "gemm_bias": ([typed, square, row, out], (False, False, False), False),
        "gemm_onto": ([typed, square, random(11, R, C, dtype=dtype), out], (False, False), False),
        "gemm_bias_onto": ([typed, square, row, random(11, R, C, dtype=dtype), out], (False, False), False),
        "gemm_rows": ([typed, square, out], (True, False), False),
        "gemm_rows_bias": ([typed, square, row, out], (False, False), False),
        "gemm_rows_onto": ([typed, square, random(11, R, C, dtype=dtype), out], (False,), False),
        "gemm_rows_bias_onto": ([typed, square, row, random(11, R, C), poison(R, C)], (True,), False),
        "attention_page": ([*([typed] * 3), page, placed, owners, out, poison(6, R)], (1, 3, True, True), False),
        "gelu": ([typed, out], (), False),
        "gelu_and_backward": ([typed, out, random(11, R, C, dtype=dtype), row], (True,), False),
        "layernorm_stats": ([x, pair], (C, True, 1e-5), False),
        "layernorm": ([x, pair, row, row, out], (), False),
        "layernorm_whole": ([x, row, row, pair, out], (1e-5,), False),
        "layernorm_whole_backward": ([x, y, pair, row, poison(R, C), row.copy(), row.copy()], (False, True), False),
        "layernorm_sums": ([x, y, pair, row, poison(R, 2)], (False,), False),
        "layernorm_backward": ([x, y, pair, row, np.abs(random(3, R, 2)), poison(R, C)], (C, False), False),
        "layernorm_gradients": ([x, y, pair, row, row.copy()], (True,), False),
        "rmsnorm_stats": ([x, poison(R, 1)], (0, True, C, 1e-5), False),
        "rmsnorm": ([x, pair[:, :1].copy(), row, out], (), False),
        "rmsnorm_whole": ([x, row, poison(R, 1), out], (1e-5,), False),
        "rmsnorm_whole_backward": ([x, y, pair[:, :1].copy(), row, poison(R, C), row.copy()], (False, True), False),
        "rmsnorm_sums": ([x, y, pair[:, :1].copy(), row, poison(R, 1)], (False,), False),
        "rmsnorm_backward": ([x, y, pair[:, :1].copy(), row, random(3, R, 1), poison(R, C)], (C, False), False),
        "rmsnorm_gradients": ([x, y, pair[:, :1].copy(), row.copy()], (True,), False),
        "rmsnorm_heads": ([typed, head, out], (3, 1e-5), False),
        "rmsnorm_heads_backward": ([typed, head, random(11, R, C, dtype=dtype), head.copy()], (3, 1e-5, True), False),
        "rope": ([typed.copy()], (2, 5, 3, True, *ROTATION), False),
        "rope_rows": ([placed[1::2].copy(), typed.copy()], (3, True, *ROTATION), False),
        "swiglu": ([typed, random(11, R, C, dtype=dtype), out], (), False),
        "swiglu_and_backward": (
            [typed, *(random(seed, R, C, dtype=dtype) for seed in (11, 12, 13)), poison(R, C, dtype=dtype)], (), False),
        "cross_entropy": ([typed, tokens, wide], (0, 3, False, True), True),
        "cross_entropy_backward": ([tokens, wide, np.ones(1, np.float32), typed], (0, 3), False),
        "embed_positions": ([random(12, R, C, dtype=dtype), x], (1, 3, 0), False),
        "embed_tokens": ([tokens, random(12, 90, C, dtype=dtype), x], (0,), False),
        "embed_positions_backward": ([x, random(12, R // 2, C)], (2, 3, 0), False),
        "embed_tokens_backward": ([tokens, x, random(12, 90, C)], (0,), False),
        "adamw": ([x, y, random(13, R, C), np.abs(random(14, R, C)), hyper], (True, C), True),
        "adamw_bf16": ([x, y, random(13, R, C), np.abs(random(14, R, C)), hyper, poison(R, C, dtype="bf16")], (True, C), True),
        "sum_squares": ([x], (C,), True),
    }


def attention(dtype: str) -> dict[str, Call]:
    """Return the calls of attention, each with the results of the earlier ones."""
    seqs, tokens, heads, hs = ATTENTION
    rows, columns = seqs * tokens, heads * hs
    q, k, v, dout = (random(seed, rows, columns, dtype=dtype) for seed in range(4))
    out, stats = poison(rows, columns, dtype=dtype), poison(2 * heads, rows)
    whole, delta = (seqs, heads, True, True), poison(heads, rows)
    VERBS["attention"](q, k, v, out, stats, *whole)
    VERBS["attention_delta"](out, dout, delta, heads)
    gradients = [poison(rows, columns, dtype=dtype) for _ in range(3)]
    positions, packed = np.arange(rows, dtype=np.int32) % 48 % 31, (*whole, 0)
    some, lse, means = poison(rows, columns, dtype=dtype), poison(2 * heads, rows), poison(heads, rows)
    VERBS["attention_packed"](q, k, v, positions, some, lse, *packed)
    VERBS["attention_delta"](some, dout, means, heads)
    return {
        "attention": ([q, k, v, poison(rows, columns, dtype=dtype), poison(2 * heads, rows)], whole, False),
        "attention_delta": ([out, dout, poison(heads, rows)], (heads,), False),
        "attention_backward": ([q, k, v, dout, stats, delta, *gradients], whole, False),
        "attention_packed": (
            [q, k, v, positions, poison(rows, columns, dtype=dtype), poison(2 * heads, rows)], packed, False),
        "attention_packed_backward": ([q, k, v, positions, dout, lse, means, *gradients], packed, False),
        "attention_backward_whole": (
            [q, k, v, out, dout, stats, poison(heads, rows), *gradients], (seqs, heads), False),
    }  # fmt: skip
