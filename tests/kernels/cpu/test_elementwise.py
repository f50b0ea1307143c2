"""copy, add, fill and column_sums."""

import numpy as np
import pytest

from asynctile.kernels.bf16 import to_bf16
from asynctile.kernels.cpu import KERNELS
from tests.kernels.reference import poison, random


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 5), (129, 100)])
def test_copy_and_fill(shape):
    x, y = random(1, *shape), poison(*shape)
    KERNELS["copy"](x, y)
    assert (x == y).all()
    KERNELS["fill"](y, 0.1)
    assert (y == np.float32(0.1)).all()


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 5), (129, 100)])
def test_add_rounds_each_sum_once_and_leaves_the_source(shape):
    x, y = random(1, *shape), random(2, *shape)
    source, expected = x.copy(), y + x
    KERNELS["add"](source, y)
    assert y.tobytes() == expected.tobytes()
    assert source.tobytes() == x.tobytes()


def test_add_shows_nan():
    x, y = random(1, 20, 20), random(2, 20, 20)
    x[11, 4], y[7, 3] = np.nan, np.inf
    x[7, 3] = -np.inf
    KERNELS["add"](x, y)
    assert np.argwhere(np.isnan(y)).tolist() == [[7, 3], [11, 4]]


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (8, 5), (100, 129), (1001, 7), (17, 2500)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_column_sums(shape, accumulate):
    x, before = random(1, *shape) + np.float32(3), random(2, shape[1])
    sums = before.copy() if accumulate else poison(shape[1])
    KERNELS["column_sums"](x, sums, accumulate)
    expected = x.astype(np.float64).sum(axis=0) + (before if accumulate else 0)
    np.testing.assert_allclose(sums, expected, rtol=3e-7, atol=1e-6)


def test_column_sums_shows_nan():
    x, sums = random(1, 20, 20), poison(20)
    x[11, 4] = np.inf
    x[12, 4] = -np.inf
    KERNELS["column_sums"](x, sums, False)
    assert np.isnan(sums[4])
    assert np.isfinite(np.delete(sums, 4)).all()


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (100, 132)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_column_sums_copy(shape, accumulate):
    x, row, copy = random(1, *shape), random(2, shape[1]), np.zeros(shape, np.uint16)
    expected, sums = (row.copy() if accumulate else poison(shape[1]) for _ in range(2))
    KERNELS["column_sums"](x, expected, accumulate)
    KERNELS["column_sums_copy"](x, sums, copy, accumulate)
    assert sums.tobytes() == expected.tobytes()
    assert copy.tobytes() == to_bf16(x).tobytes()
