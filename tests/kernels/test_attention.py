"""Attention composed over row tiles against full softmax attention in float64, and its gradient."""

import numpy as np
import pytest

from asynctile.kernels.cuda import Array
from asynctile.kernels.cuda.attention import way
from asynctile.program.precision import BF16
from tests.kernels import reference
from tests.kernels.values import DTYPES, poison, random, wide
from tests.laws import law

#: rows of each row tile, sequences in it, heads, columns of a head; in bf16 heads of 7, 12 and 130 columns take the plain
#: kernels
CASES = [
    ([1], 1, 1, 64),
    ([3], 1, 2, 16),
    ([17, 17, 5], 1, 1, 12),
    ([64, 64], 1, 2, 64),
    ([70, 70, 9], 1, 1, 64),
    ([258], 2, 1, 64),
    ([300], 1, 1, 64),
    ([100, 100, 29], 1, 2, 32),
    ([150], 3, 2, 24),
    ([140, 20], 1, 1, 80),
    ([129, 70], 1, 1, 128),
    ([66, 66], 1, 1, 130),
    ([40, 40], 1, 3, 7),
    ([12], 4, 2, 8),
]
#: The same; those of more than 160 rows are laws.
FEW = [law(*case) if sum(case[0]) > 160 else case for case in CASES]
#: Weights and the gradients of scores are rounded to bf16 before they are multiplied, and so is the state between tiles.
BF16_FORWARD, BF16_BACKWARD = 2.0**-7, 2.0**-6


def split(x, heights):
    return [piece.copy() for piece in np.split(x, np.cumsum(heights)[:-1])]


def forward(machine, q, k, v, heights, seqs, heads):
    """Return out and stats of every row tile."""
    qs, ks, vs = (split(x, heights) for x in (q, k, v))
    outs = []
    for i, query in enumerate(qs):
        out, stats = poison(*query.shape, dtype=name(q)), poison(2 * heads, query.shape[0])
        for j in range(i + 1):
            machine.run("attention", [query, ks[j], vs[j], out, stats], (seqs, heads, j == 0, j == i))
        outs.append((out, stats))
    return outs


def backward(machine, q, k, v, dout, outs, heights, seqs, heads):
    """Return dq, dk and dv, key tile after key tile as in a program: the diagonal first for each."""
    qs, ks, vs, douts = (split(x, heights) for x in (q, k, v, dout))
    dq, dk, dv = ([poison(*x.shape, dtype=name(x)) for x in tiles] for tiles in (qs, ks, vs))
    for j in range(len(ks)):
        for i in range(j, len(qs)):
            delta = poison(heads, qs[i].shape[0])
            machine.run("attention_delta", [outs[i][0], douts[i], delta], (heads,))
            arrays = [qs[i], ks[j], vs[j], douts[i], outs[i][1], delta, dq[i], dk[j], dv[j]]
            machine.run("attention_backward", arrays, (seqs, heads, j == 0, i == j))
    return np.vstack(dq), np.vstack(dk), np.vstack(dv)


def name(x):
    return "bf16" if x.dtype == BF16 else "f32"


@pytest.mark.parametrize(("heights", "seqs", "heads", "hs"), CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_full_attention(machine, heights, seqs, heads, hs, dtype):
    q, k, v, dout = (random(seed, sum(heights), heads * hs, dtype=dtype) for seed in range(4))
    outs = forward(machine, q, k, v, heights, seqs, heads)
    out, lse = reference.attention(wide(q), wide(k), wide(v), seqs, heads)
    found = np.vstack([wide(o) for o, _ in outs])
    assert reference.error(found, out) < (BF16_FORWARD if dtype == "bf16" else 1e-6)
    assert reference.error(np.hstack([s[:heads] for _, s in outs]), lse) < 1e-6
    assert all(np.isfinite(s).all() for _, s in outs)
    gradients = backward(machine, q, k, v, dout, outs, heights, seqs, heads)
    expected = reference.attention_gradients(wide(q), wide(k), wide(v), wide(dout), seqs, heads)
    largest = max(np.abs(x).max() for x in expected)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert np.abs(wide(gradient) - wanted).max() / largest < (BF16_BACKWARD if dtype == "bf16" else 2e-6)


@pytest.mark.parametrize(("heights", "seqs", "heads", "hs"), FEW)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_sees_one_key_has_exactly_no_gradient_of_its_score(machine, heights, seqs, heads, hs, dtype):
    operands = [random(seed, sum(heights), heads * hs, dtype=dtype) for seed in range(4)]
    outs = forward(machine, *operands[:3], heights, seqs, heads)
    dq, dk, _ = backward(machine, *operands, outs, heights, seqs, heads)
    lone = slice(None, None, sum(heights) // seqs)
    assert not wide(dq[lone]).any()
    assert wide(dk).any() == (sum(heights) > seqs)
    operands[0][lone] = random(9, seqs, heads * hs, dtype=dtype)
    outs = forward(machine, *operands[:3], heights, seqs, heads)
    others = backward(machine, *operands, outs, heights, seqs, heads)
    assert (dq.tobytes(), dk.tobytes()) == (others[0].tobytes(), others[1].tobytes())


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_sequences_in_one_operation_equal_two_operations_in_turn(machine, dtype):
    q, k, v, dout = (random(seed, 90, 48, dtype=dtype) for seed in range(4))
    ((out, stats),) = outs = forward(machine, q, k, v, [90], 3, 2)
    delta, *gradients = poison(2, 90), *(poison(90, 48, dtype=dtype) for _ in range(3))
    machine.run("attention_backward_whole", [q, k, v, out, dout, stats, delta, *gradients], (3, 2))
    for found, expected in zip(gradients, backward(machine, q, k, v, dout, outs, [90], 3, 2), strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_far_apart_do_not_overflow(machine, dtype):
    heights = [100, 50]
    q, k, v, dout = (random(seed, 150, 64, dtype=dtype, scale=30.0) for seed in range(4))
    outs = forward(machine, q, k, v, heights, 1, 1)
    out, lse = reference.attention(wide(q), wide(k), wide(v), 1, 1)
    assert reference.error(np.hstack([s[:1] for _, s in outs]), lse) < 1e-6
    assert reference.error(np.vstack([wide(o) for o, _ in outs]), out) < (BF16_FORWARD if dtype == "bf16" else 1e-3)
    for gradient in backward(machine, q, k, v, dout, outs, heights, 1, 1):
        assert np.isfinite(wide(gradient)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hs", [12, 16])
def test_the_future_is_not_seen(machine, dtype, hs):
    heights = [70, 70]
    q, k, v, dout = (random(seed, 140, 2 * hs, dtype=dtype) for seed in range(4))
    outs = forward(machine, q, k, v, heights, 1, 2)
    dq = backward(machine, q, k, v, dout, outs, heights, 1, 2)[0]
    k[100:], v[100:] = random(7, 40, 2 * hs, dtype=dtype), random(8, 40, 2 * hs, dtype=dtype, scale=1e4)
    others = forward(machine, q, k, v, heights, 1, 2)
    before, after = (np.vstack([o for o, _ in results]) for results in (outs, others))
    assert before[:100].tobytes() == after[:100].tobytes()
    assert (before[100:] != after[100:]).any()
    assert dq[:100].tobytes() == backward(machine, q, k, v, dout, others, heights, 1, 2)[0][:100].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_reaches_the_result(machine, which, dtype):
    operands = [random(seed, 100, 32, dtype=dtype) for seed in range(4)]
    operands[which][60, 5] = 0x7FC0 if dtype == "bf16" else np.nan
    outs = forward(machine, *operands[:3], [100], 1, 1)
    assert np.isnan(wide(outs[0][0])[60]).any()
    assert which != 0 or np.isfinite(wide(outs[0][0])[:60]).all()
    gradients = backward(machine, *operands, outs, [100], 1, 1)
    assert all(np.isnan(wide(gradient)).any() for gradient in gradients[:2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "heads", "hs"), [(1, 1, 1), (7, 3, 5), (70, 2, 12), (33, 3, 64), (9, 2, 300), (5, 40, 8)])
def test_delta(machine, rows, heads, hs, dtype):
    out, dout, delta = random(1, rows, heads * hs, dtype=dtype), random(2, rows, heads * hs, dtype=dtype), poison(heads, rows)
    machine.run("attention_delta", [out, dout, delta], (heads,))
    expected = (wide(out) * wide(dout)).reshape(rows, heads, hs).sum(2).T
    assert reference.error(delta, expected) < 1e-6


def test_bf16_heads_use_tensor_cores_where_they_fit():
    def path(hs, dtype=BF16):
        return way(Array(0, (4, 2 * hs), np.dtype(dtype)), hs).suffix

    assert [path(hs) for hs in (8, 32, 40, 64, 80, 96, 104, 128)] == [f"mma_{n}" for n in (32, 32, 64, 64, 96, 96, 128, 128)]
    assert {path(hs) for hs in (1, 12, 63, 136, 256)} == {"plain_bf16"}
    assert {path(hs, np.float32) for hs in (8, 64, 128)} == {"plain_f32"}
