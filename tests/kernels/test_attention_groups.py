"""Attention whose keys and values have fewer heads than its queries, against attention with each key head repeated."""

import numpy as np
import pytest

from tests.kernels import reference
from tests.kernels.pages import fed, orders_of
from tests.kernels.test_attention import BF16_BACKWARD, BF16_FORWARD, backward, forward
from tests.kernels.values import DTYPES, poison, random, wide
from tests.laws import law

#: rows of each row tile, sequences in it, key heads, query heads of each, columns of a head
CASES = [
    ([1], 1, 1, 2, 64),
    ([17, 17, 5], 1, 2, 2, 12),
    ([70, 70, 9], 1, 1, 4, 64),
    ([150], 3, 2, 2, 24),
    ([40, 40], 1, 3, 3, 8),
    ([129, 70], 1, 1, 2, 128),
    ([33], 3, 1, 8, 16),
    ([100], 1, 2, 8, 32),
]
#: The same; those with the most products are laws.
FEW = [law(*case) if case[0] in ([70, 70, 9], [129, 70]) else case for case in CASES]
#: lengths of the sequences, positions of a page, key heads, query heads of each, columns of a head
PAGES = [
    ([3, 9], 4, 2, 2, 16),
    ([17, 1, 11], 8, 1, 3, 24),
    ([40, 3], 40, 2, 4, 64),
    ([9, 9], 5, 1, 8, 7),
    ([35], 33, 1, 2, 130),
]


def operands(rows, groups, ratio, hs, dtype):
    """Return q, k, v and dout."""
    columns = (groups * ratio * hs, groups * hs, groups * hs, groups * ratio * hs)
    return [random(seed, rows, width, dtype=dtype) for seed, width in enumerate(columns)]


def repeated(x, ratio, hs):
    """Return keys or values with each head as often as it has query heads."""
    return np.repeat(x.reshape(len(x), -1, hs), ratio, axis=1).reshape(len(x), -1)


def summed(x, ratio, hs):
    """Return the gradient of heads from that of repeated heads."""
    return x.reshape(len(x), -1, ratio, hs).sum(2).reshape(len(x), -1)


@pytest.mark.parametrize(("heights", "seqs", "groups", "ratio", "hs"), CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_full_attention_with_repeated_heads(machine, heights, seqs, groups, ratio, hs, dtype):
    heads = groups * ratio
    q, k, v, dout = operands(sum(heights), groups, ratio, hs, dtype)
    outs = forward(machine, q, k, v, heights, seqs, heads)
    keys, values = (repeated(wide(x), ratio, hs) for x in (k, v))
    out, lse = reference.attention(wide(q), keys, values, seqs, heads)
    assert reference.error(np.vstack([wide(o) for o, _ in outs]), out) < (BF16_FORWARD if dtype == "bf16" else 1e-6)
    assert reference.error(np.hstack([s[:heads] for _, s in outs]), lse) < 1e-6
    found = backward(machine, q, k, v, dout, outs, heights, seqs, heads)
    dq, dk, dv = reference.attention_gradients(wide(q), keys, values, wide(dout), seqs, heads)
    expected = dq, summed(dk, ratio, hs), summed(dv, ratio, hs)
    largest = max(np.abs(x).max() for x in expected)
    for gradient, wanted in zip(found, expected, strict=True):
        assert np.abs(wide(gradient) - wanted).max() / largest < (BF16_BACKWARD if dtype == "bf16" else 2e-6)


@pytest.mark.parametrize(("heights", "seqs", "groups", "ratio", "hs"), FEW)
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_have_the_bits_that_they_have_with_repeated_heads(machine, heights, seqs, groups, ratio, hs, dtype):
    heads = groups * ratio
    q, k, v, dout = operands(sum(heights), groups, ratio, hs, dtype)
    keys, values = repeated(k, ratio, hs), repeated(v, ratio, hs)
    few, many = forward(machine, q, k, v, heights, seqs, heads), forward(machine, q, keys, values, heights, seqs, heads)
    for (out, stats), (expected, lse) in zip(few, many, strict=True):
        assert out.tobytes() == expected.tobytes() and stats[:heads].tobytes() == lse[:heads].tobytes()
    dq = backward(machine, q, k, v, dout, few, heights, seqs, heads)[0]
    assert dq.tobytes() == backward(machine, q, keys, values, dout, many, heights, seqs, heads)[0].tobytes()


@pytest.mark.parametrize(("seqs", "groups", "ratio", "hs"), [(3, 2, 2, 24), (1, 1, 4, 16), (2, 1, 8, 8)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_sequences_in_one_operation_equal_two_operations_in_turn(machine, seqs, groups, ratio, hs, dtype):
    heads = groups * ratio
    q, k, v, dout = operands(90, groups, ratio, hs, dtype)
    ((out, stats),) = outs = forward(machine, q, k, v, [90], seqs, heads)
    gradients = [poison(*x.shape, dtype=dtype) for x in (q, k, v)]
    machine.run("attention_backward_whole", [q, k, v, out, dout, stats, poison(heads, 90), *gradients], (seqs, heads))
    for found, expected in zip(gradients, backward(machine, q, k, v, dout, outs, [90], seqs, heads), strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("lengths", "places", "groups", "ratio", "hs"), PAGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_agree_with_whole_attention_and_give_equal_bits_however_fed(machine, lengths, places, groups, ratio, hs, dtype):
    heads = groups * ratio
    few = operands(sum(lengths), groups, ratio, hs, dtype)[:3]
    many = [few[0], *(repeated(x, ratio, hs) for x in few[1:])]

    def outs(given):
        empty = poison(2 * places, given[1].shape[1], dtype=dtype)
        return {how: fed(machine.run, parts, given, lengths, places, heads, empty) for how, parts in orders_of(lengths).items()}

    found, cuts = outs(few), np.cumsum(lengths)[:-1]
    pieces = zip(*(np.split(wide(x), cuts) for x in many), strict=True)
    expected = np.vstack([reference.attention(*piece, 1, heads)[0] for piece in pieces])
    assert reference.error(wide(found["whole"]), expected) < (BF16_FORWARD if dtype == "bf16" else 1e-6)
    assert len({out.tobytes() for out in [*found.values(), *outs(many).values()]}) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_a_key_head_reaches_its_query_heads_and_no_others(machine, dtype):
    q, k, v, _ = operands(40, 2, 3, 16, dtype)
    k[11, 20] = 0x7FC0 if dtype == "bf16" else np.nan
    ((out, _),) = forward(machine, q, k, v, [40], 1, 6)
    bad = np.isnan(wide(out))
    assert bad[11:, 48:].all() and not bad[:11].any() and not bad[:, :48].any()
    found = fed(machine.run, orders_of([40])["whole"], (q, k, v), [40], 8, 6, poison(16, 32, dtype=dtype))
    assert (np.isnan(wide(found)) == bad).all()
