"""The same numbers at other addresses, or in two threads at once, give the same bits."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels.reference import random

R, C, HEADS = 100, 96, 3


def operands(name):
    """Return arrays and parameters of one call; targets and tokens lie within the tile."""
    x = [random(seed, R, C) for seed in range(9)]
    pair, row, tokens = np.abs(random(10, R, 2)), random(11, C), np.arange(R, dtype=np.int32) % C
    stats, delta, wide = np.abs(random(12, 2 * HEADS, R)), random(13, HEADS, R), np.abs(random(14, R, 3))
    number = np.zeros(1)
    placed, owners = np.array([(r % 3, r) for r in range(R)], np.int32).reshape(-1), np.array([0, 0, 1, 31], np.int32)
    calls = {
        "gemm_rows": ([x[0], x[1], random(15, R, R)], (True, True)),
        "gemm_rows_bias_onto": ([x[0], random(18, C, R), random(16, R), random(15, R, R), random(17, R, R)], (False,)),
        "attention_page": ([*x[:3], random(15, 40, C), placed, owners, x[3], stats], (1, HEADS, False, True)),
        "gemm": ([x[0], x[1], random(15, R, R)], (False, True, True)),
        "gemm_bias_onto": ([x[0], x[1], random(16, R), random(15, R, R), random(17, R, R)], (False, True)),
        "column_sums": ([x[0], row], (True,)),
        "gelu": ([x[0], x[1]], ()),
        "gelu_backward": ([x[0], x[1]], ()),
        "gelu_and_backward": ([x[0], x[1], x[2], row], (True,)),
        "layernorm_stats": ([x[0], pair], (C, True, 1e-5)),
        "layernorm_whole": ([x[0], row, row, pair, x[1]], (1e-5,)),
        "layernorm_whole_backward": ([x[0], x[1], pair, row, x[2], row.copy(), row.copy()], (True, True)),
        "layernorm_sums": ([x[0], x[1], pair, row, np.zeros_like(pair)], (False,)),
        "layernorm_gradients": ([x[0], x[1], pair, row, row.copy()], (True,)),
        "cross_entropy": ([x[0], tokens, wide], (0, 3, False, True, number)),
        "cross_entropy_backward": ([tokens, wide, np.ones(1, np.float32), x[0]], (0, 3)),
        "attention": ([*x[:4], stats], (1, HEADS, True, True)),
        "attention_delta": ([x[0], x[1], delta], (HEADS,)),
        "attention_backward": ([*x[:4], stats, delta, *x[4:7]], (1, HEADS, False, False)),
        "attention_backward_whole": ([*x[:5], stats, delta, *x[5:8]], (1, HEADS)),
        "sum_squares": ([x[0]], (3, number)),
    }
    return calls[name]


def run(name, shift):
    arrays, params = operands(name)
    moved = []
    for array in arrays:
        room = np.zeros(array.size + 16, array.dtype)
        piece = room[shift : shift + array.size].reshape(array.shape)
        piece[...] = array
        moved.append(piece)
    KERNELS[name](*moved, *params)
    outputs = [*moved, *(p for p in params if isinstance(p, np.ndarray))]
    return b"".join(array.tobytes() for array in outputs)


NAMES = [
    "gemm", "gemm_bias_onto", "gemm_rows", "gemm_rows_bias_onto", "column_sums", "gelu", "gelu_backward", "gelu_and_backward",
    "layernorm_stats", "layernorm_sums", "layernorm_gradients", "layernorm_whole", "layernorm_whole_backward", "cross_entropy",
    "cross_entropy_backward", "attention", "attention_delta", "attention_backward", "attention_backward_whole",
    "attention_page", "sum_squares",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_other_addresses_and_two_threads_give_the_same_bits(name):
    expected = run(name, 0)
    assert all(run(name, shift) == expected for shift in (1, 3, 8, 13))
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda shift: run(name, shift), range(16))) == {expected}
