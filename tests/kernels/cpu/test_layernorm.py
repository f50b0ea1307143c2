"""Layer normalization composed over column tiles against float64 on whole rows."""

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels import reference
from tests.kernels.reference import error, poison, random

EPS = 1e-5
CASES = [(1, [1, 1]), (3, [17]), (100, [64, 64, 1]), (33, [100, 29]), (129, [768]), (7, [1500])]


def tiles(x, widths):
    cuts = np.cumsum(widths)[:-1]
    return [np.ascontiguousarray(piece) for piece in np.split(x, cuts, axis=-1)]


def statistics(pieces):
    stats, seen = poison(pieces[0].shape[0], 2), 0
    for index, piece in enumerate(pieces):
        KERNELS["layernorm_stats"](piece, stats, seen, index == len(pieces) - 1, EPS)
        seen += piece.shape[1]
    return stats


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_forward(rows, widths, offset):
    width = sum(widths)
    x = random(1, rows, width) + np.float32(offset)
    gain, bias = random(2, width), random(3, width)
    pieces = tiles(x, widths)
    stats = statistics(pieces)
    found = []
    for piece, g, b in zip(pieces, tiles(gain, widths), tiles(bias, widths), strict=True):
        y = poison(*piece.shape)
        KERNELS["layernorm"](piece, stats, g, b, y)
        found.append(y)
    _, rstd = reference.normalised(x, EPS)
    np.testing.assert_allclose(stats[:, 0], x.astype(np.float64).mean(axis=1), rtol=2e-6, atol=2e-7)
    np.testing.assert_allclose(stats[:, 1], rstd[:, 0], rtol=2e-6 if width > 2 else 1e-3)
    tolerance = 2e-6 if offset == 0.0 and width > 2 else 2e-5 if width > 2 else 1e-3
    assert error(np.hstack(found), reference.layernorm(x, gain, bias, EPS)) < tolerance


@pytest.mark.parametrize(("rows", "widths"), CASES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_backward(rows, widths, accumulate):
    width = sum(widths)
    x, dinp, gain = random(1, rows, width), random(2, rows, width), random(3, width)
    before = random(4, rows, width)
    pieces, grads, gains = tiles(x, widths), tiles(dinp, widths), tiles(gain, widths)
    stats, sums = statistics(pieces), poison(rows, 2)
    for index, (piece, grad, g) in enumerate(zip(pieces, grads, gains, strict=True)):
        KERNELS["layernorm_sums"](grad, piece, stats, g, sums, index > 0)
    dx, dgain, dbias = [], [], []
    befores = tiles(before, widths)
    for piece, grad, g, old in zip(pieces, grads, gains, befores, strict=True):
        out = old.copy() if accumulate else poison(*piece.shape)
        KERNELS["layernorm_backward"](grad, piece, stats, g, sums, out, width, accumulate)
        row = old[0].copy() if accumulate else poison(piece.shape[1])
        row_bias = old[0].copy() if accumulate else poison(piece.shape[1])
        KERNELS["layernorm_gradients"](grad, piece, stats, row, row_bias, accumulate)
        dx.append(out)
        dgain.append(row)
        dbias.append(row_bias)
    expected = reference.layernorm_gradients(dinp, x, gain, EPS)
    more = before if accumulate else np.zeros_like(before)
    tolerance = 3e-6 if width > 2 else 1e-2
    assert error(np.hstack(dx), expected[0] + more) < tolerance
    assert error(np.hstack(dgain), expected[1] + more[0]) < tolerance
    assert error(np.hstack(dbias), expected[2] + more[0]) < 1e-6


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 17), (129, 768), (7, 1500)])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_whole_rows_in_one_pass_have_the_bits_of_two(rows, width, offset):
    x, gain, bias = random(1, rows, width) + np.float32(offset), random(2, width), random(3, width)
    expected, found = poison(rows, width), poison(rows, width)
    stats, expected_stats = poison(rows, 2), statistics([x])
    KERNELS["layernorm"](x, expected_stats, gain, bias, expected)
    KERNELS["layernorm_whole"](x, gain, bias, stats, found, EPS)
    assert stats.tobytes() == expected_stats.tobytes()
    assert found.tobytes() == expected.tobytes()
    assert np.isfinite(found).all()


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 17), (2, 40), (129, 768), (7, 1500)])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_backward_in_one_pass_has_the_bits_of_three(rows, width, accumulate, begun):
    x, dinp, gain = random(1, rows, width), random(2, rows, width), random(3, width)
    before, row, stats, sums = random(4, rows, width), random(5, width), statistics([x]), poison(rows, 2)
    expected, found = ([before.copy() if accumulate else poison(rows, width)]
                       + [row.copy() if begun else poison(width) for _ in range(2)] for _ in range(2))  # fmt: skip
    KERNELS["layernorm_sums"](dinp, x, stats, gain, sums, False)
    KERNELS["layernorm_backward"](dinp, x, stats, gain, sums, expected[0], width, accumulate)
    KERNELS["layernorm_gradients"](dinp, x, stats, *expected[1:], begun)
    KERNELS["layernorm_whole_backward"](dinp, x, stats, gain, *found, accumulate, begun)
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()
        assert np.isfinite(one).all()


def test_nan_is_kept():
    x, stats = random(1, 4, 40), poison(4, 2)
    x[2, 17] = np.nan
    KERNELS["layernorm_stats"](x, stats, 0, True, EPS)
    assert np.isnan(stats[2]).all()
    assert np.isfinite(stats[[0, 1, 3]]).all()
    whole, y, row = poison(4, 2), np.zeros_like(x), np.ones(40, np.float32)
    KERNELS["layernorm_whole"](x, row, row, whole, y, EPS)
    assert np.isnan(whole[2]).all() and np.isnan(y[2]).all()
    assert np.isfinite(y[[0, 1, 3]]).all()
