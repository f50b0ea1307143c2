"""Attention of rows of several examples: each example has what it has alone, and a row of one the bits of plain attention."""

import numpy as np
import pytest

from tests.kernels import reference
from tests.kernels.test_attention import BF16_BACKWARD, BF16_FORWARD, backward, forward, split
from tests.kernels.test_attention_groups import operands, repeated, summed
from tests.kernels.values import DTYPES, poison, random, wide
from tests.laws import law

#: rows of each row tile, lengths of the examples of each sequence, key heads, query heads of each, columns of a head. In bf16,
#: heads of 7 and 12 columns take the plain kernels. Examples begin at the edges of tiles and blocks, beside them and far away.
CASES = [
    ([1], [[1]], 1, 1, 64),
    ([12], [[1, 3, 2], [6]], 1, 2, 8),
    ([17, 17, 5], [[17, 3, 14, 1, 4]], 1, 2, 12),
    ([70, 70, 9], [[2, 69, 1, 77]], 1, 1, 64),
    ([150], [[20, 30], [1, 1, 48], [50]], 2, 2, 24),
    ([40, 40, 40, 10], [[10, 31, 80, 9]], 1, 3, 7),
    ([64, 64, 64], [[64, 64, 64]], 1, 2, 32),
    ([200, 60], [[3, 130, 70, 57]], 1, 1, 40),
    ([129, 70], [[128, 1, 1, 69]], 1, 2, 128),
    ([300], [[5] * 60], 1, 1, 16),
    ([140, 20], [[141, 19]], 1, 1, 80),
]
#: The same; those with the most products are laws.
FEW = [law(*case) if sum(case[0]) > 160 else case for case in CASES]


def positions_of(lengths):
    """Return the position of each row of sequences of examples of these lengths."""
    return np.concatenate([np.arange(length) for sequence in lengths for length in sequence]).astype(np.int32)


def meetings(heights, seqs):
    """Yield for each key tile the query tiles that meet it, with how far they stand apart."""
    starts = np.r_[0, np.cumsum(heights)] // seqs
    for j in range(len(heights)):
        for i in range(j, len(heights)):
            yield i, j, int(starts[i] - starts[j])


def packed_forward(machine, q, k, v, positions, heights, seqs, heads):
    """Return out and stats of every row tile."""
    qs, ks, vs, places = (split(x, heights) for x in (q, k, v, positions))
    outs = [(poison(*x.shape, dtype="bf16" if x.dtype == np.uint16 else "f32"), poison(2 * heads, len(x))) for x in qs]
    for i, j, apart in sorted(meetings(heights, seqs)):
        machine.run("attention_packed", [qs[i], ks[j], vs[j], places[i], *outs[i]], (seqs, heads, j == 0, j == i, apart))
    return outs


def packed_backward(machine, q, k, v, positions, dout, outs, heights, seqs, heads):
    """Return dq, dk and dv, key tile after key tile as in a program."""
    qs, ks, vs, places, douts = (split(x, heights) for x in (q, k, v, positions, dout))
    dq, dk, dv = ([poison(*x.shape, dtype="bf16" if x.dtype == np.uint16 else "f32") for x in xs] for xs in (qs, ks, vs))
    for i, j, apart in meetings(heights, seqs):
        delta = poison(heads, len(qs[i]))
        machine.run("attention_delta", [outs[i][0], douts[i], delta], (heads,))
        arrays = [qs[i], ks[j], vs[j], places[i], douts[i], outs[i][1], delta, dq[i], dk[j], dv[j]]
        machine.run("attention_packed_backward", arrays, (seqs, heads, j == 0, i == j, apart))
    return np.vstack(dq), np.vstack(dk), np.vstack(dv)


def apart(function, lengths, *arrays):
    """Return the results of `function` on each example alone, joined."""
    cuts = np.cumsum([length for sequence in lengths for length in sequence])[:-1]
    found = [function(*pieces) for pieces in zip(*(np.split(x, cuts) for x in arrays), strict=True)]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize(("heights", "lengths", "groups", "ratio", "hs"), FEW)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_example_has_what_it_has_alone(machine, heights, lengths, groups, ratio, hs, dtype):
    heads, seqs, positions = groups * ratio, len(lengths), positions_of(lengths)
    q, k, v, dout = operands(sum(heights), groups, ratio, hs, dtype)
    outs = packed_forward(machine, q, k, v, positions, heights, seqs, heads)
    whole = [wide(q), *(repeated(wide(x), ratio, hs) for x in (k, v))]

    def alone(*parts):
        out, lse = reference.attention(*parts, 1, heads)
        return out, lse.T

    out, lse = apart(alone, lengths, *whole)
    assert reference.error(np.vstack([wide(o) for o, _ in outs]), out) < (BF16_FORWARD if dtype == "bf16" else 1e-6)
    assert reference.error(np.hstack([s[:heads] for _, s in outs]).T, lse) < 1e-6
    gradients = packed_backward(machine, q, k, v, positions, dout, outs, heights, seqs, heads)
    dq, dk, dv = apart(lambda *parts: reference.attention_gradients(*parts, 1, heads), lengths, *whole, wide(dout))
    expected = dq, summed(dk, ratio, hs), summed(dv, ratio, hs)
    largest = max(np.abs(x).max() for x in expected)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert np.abs(wide(gradient) - wanted).max() / largest < (BF16_BACKWARD if dtype == "bf16" else 2e-6)
    lone = positions == 0
    assert not wide(gradients[0])[lone].any()


@pytest.mark.parametrize(("heights", "seqs", "heads", "hs"), [
    ([1], 1, 1, 64), ([12], 4, 2, 8), ([70, 70, 9], 1, 2, 64), ([150], 3, 2, 24), ([40, 40], 1, 3, 7), ([140, 20], 1, 1, 80),
])  # fmt: skip
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_example_a_sequence_has_the_bits_of_plain_attention(machine, heights, seqs, heads, hs, dtype):
    q, k, v, dout = operands(sum(heights), heads, 1, hs, dtype)
    positions = positions_of([[sum(heights) // seqs]] * seqs)
    outs = packed_forward(machine, q, k, v, positions, heights, seqs, heads)
    expected = forward(machine, q, k, v, heights, seqs, heads)
    for (out, stats), (other, others) in zip(outs, expected, strict=True):
        assert (out.tobytes(), stats[:heads].tobytes()) == (other.tobytes(), others[:heads].tobytes())
    found = packed_backward(machine, q, k, v, positions, dout, outs, heights, seqs, heads)
    for gradient, wanted in zip(found, backward(machine, q, k, v, dout, expected, heights, seqs, heads), strict=True):
        assert gradient.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("hs", [12, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_example_changes_a_bit_of_another(machine, dtype, hs):
    """Other tokens in the first and third example, with scores far beyond those of the others."""
    heights, lengths, seqs, heads = [70, 70, 30], [[50, 60, 20, 40]], 1, 2
    positions, kept = positions_of(lengths), [*range(50, 110), *range(130, 170)]
    given = operands(sum(heights), heads, 1, hs, dtype)
    others = [random(9 + seed, *x.shape, dtype=dtype, scale=40.0) for seed, x in enumerate(given)]
    for x, other in zip(given, others, strict=True):
        other[kept] = x[kept]
    found = []
    for q, k, v, dout in (given, others):
        outs = packed_forward(machine, q, k, v, positions, heights, seqs, heads)
        gradients = packed_backward(machine, q, k, v, positions, dout, outs, heights, seqs, heads)
        found.append([np.vstack([out for out, _ in outs]), *gradients])
    for one, other in zip(*found, strict=True):
        assert one[kept].tobytes() == other[kept].tobytes()
        assert (one != other).any()
