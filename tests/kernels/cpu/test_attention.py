"""Attention composed over row tiles against full softmax attention, and its gradient."""

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels import reference
from tests.kernels.reference import error, poison, random

#: rows of each row tile, sequences in it, heads, columns of a head
CASES = [
    ([1], 1, 1, 8),
    ([3], 1, 2, 16),
    ([17, 17, 5], 1, 1, 24),
    ([64, 64], 1, 2, 64),
    ([100, 100, 29], 1, 3, 32),
    ([129, 129], 1, 1, 128),
    ([200, 200, 1], 1, 2, 40),
    ([300], 3, 2, 16),
    ([258], 2, 1, 64),
    ([12], 4, 2, 8),
]


def split(x, heights):
    return [piece.copy() for piece in np.split(x, np.cumsum(heights)[:-1])]


def forward(q, k, v, heights, seqs, heads):
    """Return out and stats of every row tile."""
    qs, ks, vs = (split(x, heights) for x in (q, k, v))
    outs = []
    for i, query in enumerate(qs):
        out, stats = poison(*query.shape), poison(2 * heads, query.shape[0])
        for j in range(i + 1):
            KERNELS["attention"](query, ks[j], vs[j], out, stats, seqs, heads, j == 0, j == i)
        outs.append((out, stats))
    return outs


def backward(q, k, v, dout, outs, heights, seqs, heads):
    """Return dq, dk and dv, key tile after key tile as in a program: the diagonal first for each."""
    qs, ks, vs, douts = (split(x, heights) for x in (q, k, v, dout))
    dq, dk, dv = ([poison(*x.shape) for x in qs] for _ in range(3))
    for j in range(len(ks)):
        for i in range(j, len(qs)):
            delta = poison(heads, qs[i].shape[0])
            KERNELS["attention_delta"](outs[i][0], douts[i], delta, heads)
            KERNELS["attention_backward"](
                qs[i], ks[j], vs[j], douts[i], outs[i][1], delta, dq[i], dk[j], dv[j], seqs, heads, j == 0, i == j
            )
    return np.vstack(dq), np.vstack(dk), np.vstack(dv)


@pytest.mark.parametrize(("heights", "seqs", "heads", "hs"), CASES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_against_full_attention(heights, seqs, heads, hs, scale):
    rows, columns = sum(heights), heads * hs
    q, k, v, dout = (random(seed, rows, columns, scale=scale) for seed in range(4))
    # A rounding error of a score is an absolute error of a weight's exponent. It grows with the scores, here 16 times larger.
    rounding = 1e-6 * scale * scale
    outs = forward(q, k, v, heights, seqs, heads)
    out, lse = reference.attention(q, k, v, seqs, heads)
    assert error(np.vstack([o for o, _ in outs]), out) < rounding
    assert error(np.hstack([s[:heads] for _, s in outs]), lse) < 1e-6
    assert all(np.isfinite(s).all() for _, s in outs)
    found = backward(q, k, v, dout, outs, heights, seqs, heads)
    expected = reference.attention_gradients(q, k, v, dout, seqs, heads)
    largest = max(np.abs(x).max() for x in expected)
    for gradient, wanted in zip(found, expected, strict=True):
        assert np.abs(gradient - wanted).max() / largest < 2 * rounding


@pytest.mark.parametrize(("heights", "seqs", "heads", "hs"), CASES)
def test_a_query_that_sees_one_key_has_exactly_no_gradient_of_its_score(heights, seqs, heads, hs):
    operands = [random(seed, sum(heights), heads * hs) for seed in range(4)]
    dq, dk, _ = backward(*operands, forward(*operands[:3], heights, seqs, heads), heights, seqs, heads)
    lone = slice(None, None, sum(heights) // seqs)
    assert not dq[lone].any()
    assert dk.any() == (sum(heights) > seqs)
    operands[0][lone] = random(9, seqs, heads * hs)
    others = backward(*operands, forward(*operands[:3], heights, seqs, heads), heights, seqs, heads)
    assert (dq.tobytes(), dk.tobytes()) == (others[0].tobytes(), others[1].tobytes())


def test_whole_sequences_in_one_operation_equal_two_operations_in_turn():
    q, k, v, dout = (random(seed, 90, 48) for seed in range(4))
    ((out, stats),) = outs = forward(q, k, v, [90], 3, 2)
    delta, *gradients = poison(2, 90), *(poison(90, 48) for _ in range(3))
    KERNELS["attention_backward_whole"](q, k, v, out, dout, stats, delta, *gradients, 3, 2)
    for found, expected in zip(gradients, backward(q, k, v, dout, outs, [90], 3, 2), strict=True):
        assert found.tobytes() == expected.tobytes()


def test_the_future_is_not_seen():
    heights, columns = [70, 70], 32
    q, k, v = (random(seed, 140, columns) for seed in range(3))
    before = np.vstack([o for o, _ in forward(q, k, v, heights, 1, 2)])
    k[100:], v[100:] = 1e4, -1e4
    after = np.vstack([o for o, _ in forward(q, k, v, heights, 1, 2)])
    assert before[:100].tobytes() == after[:100].tobytes()
    assert (before[100:] != after[100:]).any()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_reaches_the_result(which):
    operands = [random(seed, 100, 32) for seed in range(3)]
    operands[which][60, 5] = np.nan
    ((out, _),) = forward(*operands, [100], 1, 1)
    assert np.isnan(out[60]).any()
    assert np.isfinite(out[:30]).all() or which != 0


def test_scores_far_apart_do_not_overflow():
    q, k, v = (random(seed, 150, 64, scale=30.0) for seed in range(3))
    ((out, stats),) = forward(q, k, v, [150], 1, 1)
    expected, lse = reference.attention(q, k, v, 1, 1)
    assert error(stats[:1], lse) < 1e-6
    assert np.abs(out - expected).max() / np.abs(expected).max() < 1e-3
