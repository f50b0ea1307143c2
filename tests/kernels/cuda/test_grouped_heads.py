"""Keys with fewer heads than queries: the bits of keys that are repeated for each query head, and sums of their gradients."""

import numpy as np
import pytest

from asynctile.kernels.bf16 import from_bf16
from asynctile.program.precision import BF16
from tests.cuda.build import library, missing
from tests.cuda.machine import SoftMachine
from tests.kernels.pages import fed, orders_of
from tests.kernels.test_attention import forward, split
from tests.kernels.values import DTYPES, poison, random

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
#: rows of each row tile, sequences in it, heads of queries, heads of keys, columns of a head. In bf16 heads of 12 and 130
#: columns take the plain kernels.
CASES = [
    ([70, 70, 9], 1, 4, 2, 64),
    ([150], 3, 2, 1, 24),
    ([40, 30], 1, 6, 2, 12),
    ([33], 1, 2, 1, 130),
    ([140, 20], 1, 2, 1, 80),
    ([66], 2, 8, 1, 32),
]


@pytest.fixture
def machine():
    library().order("forward")
    yield SoftMachine(library())
    library().order("forward")


def drawn(rows, heads, key_heads, hs, dtype):
    """Return q, k, v and dout."""
    return [random(seed, rows, count * hs, dtype=dtype) for seed, count in enumerate((heads, key_heads, key_heads, heads))]


def repeated(x, hs, ratio):
    """Return the heads of x, each `ratio` times."""
    return np.ascontiguousarray(np.repeat(x.reshape(len(x), -1, hs), ratio, axis=1).reshape(len(x), -1))


def in_groups(x, hs, ratio):
    """Return the sums of each `ratio` heads, in float64, and the largest magnitude of a term."""
    wide = (from_bf16(x) if x.dtype == BF16 else x).astype(np.float64)
    return wide.reshape(len(x), -1, ratio, hs).sum(2).reshape(len(x), -1), np.abs(wide).max()


def backward(machine, q, k, v, dout, outs, heights, seqs, heads):
    """Return dq, dk and dv, key tile after key tile as in a program."""
    qs, ks, vs, douts = (split(x, heights) for x in (q, k, v, dout))
    dq, dk, dv = ([np.full_like(x, 0x7FC0 if x.dtype == BF16 else np.nan) for x in xs] for xs in (qs, ks, vs))
    for j in range(len(ks)):
        for i in range(j, len(qs)):
            delta = poison(heads, len(qs[i]))
            machine.run("attention_delta", [outs[i][0], douts[i], delta], (heads,))
            arrays = [qs[i], ks[j], vs[j], douts[i], outs[i][1], delta, dq[i], dk[j], dv[j]]
            machine.run("attention_backward", arrays, (seqs, heads, j == 0, i == j))
    return np.vstack(dq), np.vstack(dk), np.vstack(dv)


@pytest.mark.parametrize(("heights", "seqs", "heads", "key_heads", "hs"), CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_read_their_head_of_keys(machine, heights, seqs, heads, key_heads, hs, dtype):
    ratio = heads // key_heads
    q, k, v, dout = drawn(sum(heights), heads, key_heads, hs, dtype)
    outs = forward(machine, q, k, v, heights, seqs, heads)
    all_keys, all_values = repeated(k, hs, ratio), repeated(v, hs, ratio)
    expected = forward(machine, q, all_keys, all_values, heights, seqs, heads)
    for (out, stats), (other, others) in zip(outs, expected, strict=True):
        assert (out.tobytes(), stats.tobytes()) == (other.tobytes(), others.tobytes())

    dq, *gradients = backward(machine, q, k, v, dout, outs, heights, seqs, heads)
    expected_dq, *terms = backward(machine, q, all_keys, all_values, dout, expected, heights, seqs, heads)
    assert dq.tobytes() == expected_dq.tobytes()
    # In bf16 each head's own gradient was rounded, and so is the sum between row tiles.
    tolerance = 2.0**-7 * ratio if dtype == "bf16" else 1e-6 * ratio
    for found, parts in zip(gradients, terms, strict=True):
        wanted, largest = in_groups(parts, hs, ratio)
        assert np.abs(in_groups(found, hs, 1)[0] - wanted).max() < tolerance * largest


@pytest.mark.parametrize("hs", [12, 32, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_may_run_in_any_order(machine, dtype, hs):
    q, k, v, dout = drawn(80, 4, 2, hs, dtype)
    results = set()
    for order in ("forward", "reversed", 1):
        library().order(order)
        outs = forward(machine, q, k, v, [70, 10], 1, 4)
        gradients = backward(machine, q, k, v, dout, outs, [70, 10], 1, 4)
        results.add(b"".join(x.tobytes() for x in (*gradients, *(x for pair in outs for x in pair))))
    assert len(results) == 1


@pytest.mark.parametrize("hs", [7, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_hold_the_heads_of_keys_alone(machine, dtype, hs):
    lengths, places, (q, k, v, _) = [11, 3], 4, drawn(14, 6, 2, hs, dtype)

    def out(keys, values):
        empty = poison(2 * places, keys.shape[1], dtype=dtype)
        return fed(machine.run, orders_of(lengths)["mixed"], [q, keys, values], lengths, places, 6, empty)

    assert out(k, v).tobytes() == out(repeated(k, hs, 3), repeated(v, hs, 3)).tobytes()
