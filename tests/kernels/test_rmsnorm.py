"""RMSNorm composed over column tiles against float64 on whole rows, and head by head."""

import numpy as np
import pytest

from tests import verbs
from tests.kernels.slopes import assert_slope
from tests.kernels.values import DTYPES, assert_close, poison, random, typed, wide

EPS = 1e-5
CASES = [(1, [1, 1]), (3, [17]), (100, [64, 64, 1]), (33, [100, 29]), (70, [768]), (7, [1500]), (5, [2056, 1024])]
#: Rows and columns of tiles that hold whole rows.
WHOLE = [(1, 2), (3, 17), (33, 132), (100, 129), (70, 768), (7, 1500), (9, 2056)]
#: Rows, heads, columns of a head.
HEADS = [(1, 1, 2), (3, 5, 6), (33, 3, 64), (70, 2, 128), (9, 7, 80), (2, 2, 300)]


def tiles(x, widths):
    return [np.ascontiguousarray(piece) for piece in np.split(x, np.cumsum(widths)[:-1], axis=-1)]


def statistics(machine, pieces):
    stats, seen, width = poison(len(pieces[0]), 1), 0, sum(piece.shape[1] for piece in pieces)
    for index, piece in enumerate(pieces):
        machine.run("rmsnorm_stats", [piece, stats], (seen, index == len(pieces) - 1, width, EPS))
        seen += piece.shape[1]
    return stats


def normed(x, gain):
    """Return y and rstd in float64."""
    stats, y = np.empty((len(x), 1)), np.empty(x.shape)
    verbs.rmsnorm_whole(x, gain, stats, y, EPS)
    return y, stats


def gradients(dinp, x, gain):
    """Return dx and dgain in float64."""
    dx, dgain = np.empty(x.shape), np.empty(x.shape[1])
    verbs.rmsnorm_whole_backward(dinp, x, normed(x, gain)[1], gain, dx, dgain, False, False)
    return dx, dgain


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward(machine, rows, widths, scale, dtype):
    width = sum(widths)
    x, gain = random(1, rows, width, scale=scale), random(2, width)
    pieces = tiles(x, widths)
    stats, found = statistics(machine, pieces), []
    for piece, g in zip(pieces, tiles(gain, widths), strict=True):
        found.append(poison(*piece.shape, dtype=dtype))
        machine.run("rmsnorm", [piece, stats, g, found[-1]], ())
    y, rstd = normed(x, gain)
    np.testing.assert_allclose(stats, rstd, rtol=1e-6)
    assert_close(np.hstack(found), y, 1e-6)


@pytest.mark.parametrize(("rows", "width"), WHOLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_rows_in_one_pass_equal_those_recomputed_from_their_statistics(machine, rows, width, dtype):
    """Rows kept for backward, or recomputed there, have the bits of forward."""
    x, gain, stats = random(1, rows, width), random(2, width), poison(rows, 1)
    expected, found = (poison(rows, width, dtype=dtype) for _ in range(2))
    machine.run("rmsnorm_whole", [x, gain, stats, found], (EPS,))
    machine.run("rmsnorm", [x, stats, gain, expected], ())
    np.testing.assert_allclose(stats, statistics(machine, [x]), rtol=1e-6)
    assert found.tobytes() == expected.tobytes()
    assert_close(found, normed(x, gain)[0], 1e-6)


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_backward(machine, rows, widths, accumulate):
    width = sum(widths)
    x, dinp, gain, before = random(1, rows, width), random(2, rows, width), random(3, width), random(4, rows, width)
    pieces, grads, gains = tiles(x, widths), tiles(dinp, widths), tiles(gain, widths)
    stats, sums = statistics(machine, pieces), poison(rows, 1)
    for index, (piece, grad, g) in enumerate(zip(pieces, grads, gains, strict=True)):
        machine.run("rmsnorm_sums", [grad, piece, stats, g, sums], (index > 0,))
    dx, dgain = [], []
    for piece, grad, g, old in zip(pieces, grads, gains, tiles(before, widths), strict=True):
        dx.append(old.copy() if accumulate else poison(*piece.shape))
        dgain.append(old[0].copy() if accumulate else poison(piece.shape[1]))
        machine.run("rmsnorm_backward", [grad, piece, stats, g, sums, dx[-1]], (width, accumulate))
        machine.run("rmsnorm_gradients", [grad, piece, stats, dgain[-1]], (accumulate,))
    expected = gradients(dinp, x, gain)
    more = before if accumulate else np.zeros_like(before)
    assert_close(np.hstack(dx), expected[0] + more, 3e-6)
    assert_close(np.hstack(dgain), expected[1] + more[0], 1e-6)


@pytest.mark.parametrize(("rows", "width"), [*WHOLE, (700, 36), (17, 5000)])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_backward_of_whole_rows_in_one_pass(machine, rows, width, accumulate, begun):
    x, dinp, gain = random(1, rows, width), random(2, rows, width), random(3, width)
    before, row, stats = random(4, rows, width), random(5, width), statistics(machine, [x])
    dx, dgain = before.copy() if accumulate else poison(rows, width), row.copy() if begun else poison(width)
    machine.run("rmsnorm_whole_backward", [dinp, x, stats, gain, dx, dgain], (accumulate, begun))
    expected = gradients(dinp, x, gain)
    assert_close(dx, expected[0] + (before if accumulate else 0), 3e-6)
    assert_close(dgain, expected[1] + (row if begun else 0), 1e-6)


def test_gradients_are_the_slopes_of_the_norm(machine):
    x, dinp, gain = random(1, 9, 40), random(2, 9, 40), random(3, 40)
    dx, dgain = poison(9, 40), poison(40)
    machine.run("rmsnorm_whole_backward", [dinp, x, statistics(machine, [x]), gain, dx, dgain], (False, False))
    assert_slope(dx, lambda x: normed(x, gain)[0], x, dinp, 1e-6)
    assert_slope(dgain, lambda gain: normed(x, gain)[0], gain, dinp, 1e-6)


@pytest.mark.parametrize(("rows", "heads", "hs"), HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads(machine, rows, heads, hs, dtype):
    """Each head is a row of `rmsnorm_whole`, with its bits where rows are not rounded to bf16."""
    x, gain, y = random(1, rows, heads * hs, dtype=dtype), random(2, hs), poison(rows, heads * hs, dtype=dtype)
    machine.run("rmsnorm_heads", [x, gain, y], (heads, EPS))
    assert_close(y, normed(wide(x).reshape(-1, hs), gain)[0].reshape(x.shape), 1e-6)
    wider = wide(x).astype(np.float32)
    alone = poison(rows * heads, hs, dtype=dtype)
    machine.run("rmsnorm_whole", [wider.reshape(-1, hs).copy(), gain, poison(rows * heads, 1), alone], (EPS,))
    assert_close(y, wide(alone).reshape(x.shape), 3e-7)


@pytest.mark.parametrize(("rows", "heads", "hs"), [*HEADS, (300, 3, 16)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("begun", [False, True])
def test_backward_of_heads(machine, rows, heads, hs, dtype, begun):
    x, grad = random(1, rows, heads * hs, dtype=dtype), random(2, rows, heads * hs, dtype=dtype)
    gain, row, dy = random(3, hs), random(4, hs), wide(grad).reshape(-1, hs)
    dgain = row.copy() if begun else poison(hs)
    machine.run("rmsnorm_heads_backward", [x, gain, grad, dgain], (heads, EPS, begun))
    expected = gradients(dy, wide(x).reshape(-1, hs), gain)
    assert_close(grad, expected[0].reshape(x.shape), 3e-6)
    assert_close(dgain, expected[1] + (row if begun else 0), 1e-6)


def test_gradients_of_heads_are_the_slopes_of_their_norm(machine):
    x, dy, gain, dgain = random(1, 5, 48), random(2, 5, 48), random(3, 16), poison(16)
    grad = dy.copy()
    machine.run("rmsnorm_heads_backward", [x, gain, grad, dgain], (3, EPS, False))

    def norm(x, gain):
        return np.hstack([normed(piece, gain)[0] for piece in np.split(x, 3, axis=1)])

    assert_slope(grad, lambda x: norm(x, gain), x, dy, 1e-6)
    assert_slope(dgain, lambda gain: norm(x, gain), gain, dy, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_zeros_stay_zero(machine, dtype):
    x, gain, stats, y = np.zeros((2, 40), np.float32), random(1, 40), poison(2, 1), poison(2, 40, dtype=dtype)
    machine.run("rmsnorm_whole", [x, gain, stats, y], (EPS,))
    assert not wide(y).any()
    np.testing.assert_allclose(stats, EPS**-0.5, rtol=1e-6)
    grad, dgain = poison(2, 40), poison(40)
    machine.run("rmsnorm_whole_backward", [np.ones_like(x), x, stats, gain, grad, dgain], (False, False))
    np.testing.assert_allclose(grad, np.tile(gain * EPS**-0.5, (2, 1)), rtol=1e-6)
    assert not dgain.any()


@pytest.mark.parametrize("columns", [40, 41])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_in_its_row(machine, columns, dtype):
    x, stats, gain, fine = random(1, 4, columns), poison(4, 1), random(2, columns), [0, 1, 3]
    x[2, 17] = np.nan
    machine.run("rmsnorm_stats", [x, stats], (0, True, columns, EPS))
    assert np.isnan(stats[2]).all() and np.isfinite(stats[fine]).all()
    y, sums = typed(np.zeros_like(x), dtype), np.zeros((4, 1), np.float32)
    machine.run("rmsnorm", [x, stats, gain, y], ())
    assert np.isnan(wide(y)[2]).all() and np.isfinite(wide(y)[fine]).all()
    y = typed(np.zeros_like(x), dtype)
    machine.run("rmsnorm_whole", [x, gain, poison(4, 1), y], (EPS,))
    assert np.isnan(wide(y)[2]).all() and np.isfinite(wide(y)[fine]).all()
    machine.run("rmsnorm_sums", [x, x, stats, gain, sums], (False,))
    assert np.isnan(sums[2]).all() and np.isfinite(sums[fine]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_in_its_head(machine, dtype):
    values, gain, dgain = random(1, 3, 60), random(2, 20), poison(20)
    values[1, 25] = np.nan
    x, y, grad = typed(values, dtype), poison(3, 60, dtype=dtype), random(3, 3, 60, dtype=dtype)
    machine.run("rmsnorm_heads", [x, gain, y], (3, EPS))
    machine.run("rmsnorm_heads_backward", [x, gain, grad, dgain], (3, EPS, False))
    hit = np.zeros((3, 60), bool)
    hit[1, 20:40] = True
    for found in (wide(y), wide(grad)):
        assert np.isnan(found[hit]).all() and np.isfinite(found[~hit]).all()
    assert np.isnan(dgain).all()
