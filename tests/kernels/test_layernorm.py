"""Layer normalization composed over column tiles against float64 on whole rows."""

import numpy as np
import pytest

from tests.cuda.build import library, missing
from tests.cuda.machine import SoftMachine
from tests.kernels import reference
from tests.kernels.values import DTYPES, assert_close, poison, random, typed, wide

EPS = 1e-5
CASES = [(1, [1, 1]), (3, [17]), (100, [64, 64, 1]), (33, [100, 29]), (70, [768]), (7, [1500]), (5, [2056, 1024])]
#: Rows and columns of tiles that hold whole rows.
WHOLE = [(1, 2), (3, 17), (33, 132), (100, 129), (70, 768), (7, 1500), (9, 2056)]


def tiles(x, widths):
    cuts = np.cumsum(widths)[:-1]
    return [np.ascontiguousarray(piece) for piece in np.split(x, cuts, axis=-1)]


def statistics(machine, pieces):
    stats, seen = poison(pieces[0].shape[0], 2), 0
    for index, piece in enumerate(pieces):
        machine.run("layernorm_stats", [piece, stats], (seen, index == len(pieces) - 1, EPS))
        seen += piece.shape[1]
    return stats


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward(machine, rows, widths, offset, dtype):
    width = sum(widths)
    x = random(1, rows, width) + np.float32(offset)
    gain, bias = random(2, width), random(3, width)
    pieces = tiles(x, widths)
    stats = statistics(machine, pieces)
    found = []
    for piece, g, b in zip(pieces, tiles(gain, widths), tiles(bias, widths), strict=True):
        y = poison(*piece.shape, dtype=dtype)
        machine.run("layernorm", [piece, stats, g, b, y], ())
        found.append(y)
    np.testing.assert_allclose(stats[:, 0], wide(x).mean(axis=1), rtol=2e-6, atol=2e-7)
    np.testing.assert_allclose(stats[:, 1], reference.rstd(x, EPS), rtol=2e-6 if width > 2 else 1e-3)
    tolerance = 2e-6 if offset == 0.0 and width > 2 else 2e-5 if width > 2 else 1e-3
    assert_close(np.hstack(found), reference.layernorm(x, gain, bias, EPS), tolerance)


@pytest.mark.parametrize(("rows", "width"), WHOLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_rows_in_one_pass_equal_those_recomputed_from_their_statistics(machine, rows, width, dtype):
    """Rows kept for backward, or recomputed there, have the bits of forward."""
    x, gain, bias = random(1, rows, width) + np.float32(3), random(2, width), random(3, width)
    expected, found, stats = poison(rows, width, dtype=dtype), poison(rows, width, dtype=dtype), poison(rows, 2)
    machine.run("layernorm_whole", [x, gain, bias, stats, found], (EPS,))
    machine.run("layernorm", [x, stats, gain, bias, expected], ())
    np.testing.assert_allclose(stats, statistics(machine, [x]), rtol=1e-6)
    assert found.tobytes() == expected.tobytes()
    assert np.isfinite(wide(found)).all()


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_backward(machine, rows, widths, accumulate):
    width = sum(widths)
    x, dinp, gain = random(1, rows, width), random(2, rows, width), random(3, width)
    before = random(4, rows, width)
    pieces, grads, gains = tiles(x, widths), tiles(dinp, widths), tiles(gain, widths)
    stats, sums = statistics(machine, pieces), poison(rows, 2)
    for index, (piece, grad, g) in enumerate(zip(pieces, grads, gains, strict=True)):
        machine.run("layernorm_sums", [grad, piece, stats, g, sums], (index > 0,))
    dx, dgain, dbias = [], [], []
    befores = tiles(before, widths)
    for piece, grad, g, old in zip(pieces, grads, gains, befores, strict=True):
        out = old.copy() if accumulate else poison(*piece.shape)
        machine.run("layernorm_backward", [grad, piece, stats, g, sums, out], (width, accumulate))
        row = old[0].copy() if accumulate else poison(piece.shape[1])
        row_bias = old[0].copy() if accumulate else poison(piece.shape[1])
        machine.run("layernorm_gradients", [grad, piece, stats, row, row_bias], (accumulate,))
        dx.append(out)
        dgain.append(row)
        dbias.append(row_bias)
    expected = reference.layernorm_gradients(dinp, x, gain, EPS)
    more = before if accumulate else np.zeros_like(before)
    tolerance = 3e-6 if width > 2 else 1e-2
    assert_close(np.hstack(dx), expected[0] + more, tolerance)
    assert_close(np.hstack(dgain), expected[1] + more[0], tolerance)
    assert_close(np.hstack(dbias), expected[2] + more[0], 1e-6)


@pytest.mark.parametrize(("rows", "width"), [*WHOLE, (700, 36), (17, 5000)])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_backward_of_whole_rows_in_one_pass(machine, rows, width, accumulate, begun):
    x, dinp, gain = random(1, rows, width), random(2, rows, width), random(3, width)
    before, row, stats = random(4, rows, width), random(5, width), statistics(machine, [x])
    dx = before.copy() if accumulate else poison(rows, width)
    dgain, dbias = (row.copy() if begun else poison(width) for _ in range(2))
    machine.run("layernorm_whole_backward", [dinp, x, stats, gain, dx, dgain, dbias], (accumulate, begun))
    expected = reference.layernorm_gradients(dinp, x, gain, EPS)
    more = row if begun else np.zeros_like(row)
    tolerance = 3e-6 if width > 2 else 1e-2
    assert_close(dx, expected[0] + (before if accumulate else 0), tolerance)
    assert_close(dgain, expected[1] + more, tolerance)
    assert_close(dbias, expected[2] + more, 1e-6)


#: Shared memory of a block on sm_90, sm_80, sm_86, and by default.
SHARED = (227 << 10, 163 << 10, 99 << 10, 48 << 10)


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("width", [2304, 3201, 5000])
def test_backward_of_whole_rows_keeps_its_bits_with_less_shared_memory(width):
    """With too little shared memory only the bits differ. The machine asserts that a block asks for no more than there is."""
    rows, before = 11, random(4, 11, width)
    x, dinp, gain, row = random(1, rows, width), random(2, rows, width), random(3, width), random(5, width)
    stats = statistics(SoftMachine(library()), [x])
    found = []
    for shared in (*SHARED, 16 << 10):
        results = [before.copy(), row.copy(), row.copy()]
        SoftMachine(library(), shared=shared).run(
            "layernorm_whole_backward", [dinp, x, stats, gain, *results], (True, True))
        found.append(results)
    held = [shared >= 16 * 4 * -(-width // 4) for shared in SHARED]
    assert held[:3] == [True] * 3
    for results in (results for results, fits in zip(found, held, strict=False) if fits):
        assert all(one.tobytes() == other.tobytes() for one, other in zip(results, found[0], strict=True))
    for results in found:
        expected = reference.layernorm_gradients(dinp, x, gain, EPS)
        for one, other, more in zip(results, expected, (before, row, row), strict=True):
            assert_close(one, other + more, 3e-6)


@pytest.mark.parametrize("columns", [40, 41])
def test_backward_of_whole_rows_shows_nan(machine, columns):
    x, dinp, gain, stats = random(1, 20, columns), random(2, 20, columns), random(3, columns), np.ones((20, 2), np.float32)
    dinp[11, 4], x[12, 5] = np.nan, np.inf
    dx, dgain, dbias = poison(20, columns), poison(columns), poison(columns)
    machine.run("layernorm_whole_backward", [dinp, x, stats, gain, dx, dgain, dbias], (False, False))
    assert np.isnan(dx[[11, 12]]).all(axis=1)[0] and not np.isfinite(dx[12]).any()
    assert np.isfinite(np.delete(dx, [11, 12], axis=0)).all()
    assert np.isnan(dgain[4]) and np.isnan(dbias[4]) and not np.isfinite(dgain[5])
    assert np.isfinite(np.delete(dgain, [4, 5])).all() and np.isfinite(np.delete(dbias, 4)).all()


@pytest.mark.parametrize("columns", [768, 769])
def test_a_mean_far_from_zero_costs_the_deviation_no_digits(machine, columns):
    x, stats = random(1, 20, columns, scale=3e-3) + np.float32(1000), poison(20, 2)
    machine.run("layernorm_stats", [x, stats], (0, True, 0.0))
    np.testing.assert_allclose(stats[:, 1], reference.rstd(x, 0.0), rtol=2e-6)


def test_gradients_over_many_chunks(machine):
    x, dinp, stats = random(1, 700, 36), random(2, 700, 36), poison(700, 2)
    machine.run("layernorm_stats", [x, stats], (0, True, EPS))
    dgain, dbias = poison(36), poison(36)
    machine.run("layernorm_gradients", [dinp, x, stats, dgain, dbias], (False,))
    _, expected_gain, expected_bias = reference.layernorm_gradients(dinp, x, np.ones(36), EPS)
    assert_close(dgain, expected_gain, 1e-6)
    assert_close(dbias, expected_bias, 1e-6)


@pytest.mark.parametrize("columns", [40, 41])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_kept(machine, columns, dtype):
    x, stats, row = random(1, 4, columns), poison(4, 2), np.ones(columns, np.float32)
    x[2, 17] = np.nan
    machine.run("layernorm_stats", [x, stats], (0, True, EPS))
    assert np.isnan(stats[2]).all()
    assert np.isfinite(stats[[0, 1, 3]]).all()
    y, sums = typed(np.zeros_like(x), dtype), np.zeros((4, 2), np.float32)
    machine.run("layernorm", [x, stats, row, row, y], ())
    assert np.isnan(wide(y)[2]).all()
    whole, y = poison(4, 2), typed(np.zeros_like(x), dtype)
    machine.run("layernorm_whole", [x, row, row, whole, y], (EPS,))
    assert np.isnan(whole[2]).all() and np.isnan(wide(y)[2]).all()
    assert np.isfinite(wide(y)[[0, 1, 3]]).all()
    machine.run("layernorm_sums", [x, x, stats, row, sums], (False,))
    assert np.isnan(sums[2]).all()
    assert np.isfinite(sums[[0, 1, 3]]).all()
