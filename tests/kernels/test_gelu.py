"""gelu and its derivative against float64, to the ends of the range."""

import numpy as np
import pytest

from tests.kernels import reference
from tests.kernels.values import DTYPES, assert_close, poison, random, typed, wide

SHAPES = [(1, 1), (3, 17), (100, 129), (64, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(machine, shape, dtype):
    x, y = random(1, *shape, dtype=dtype, scale=3.0), poison(*shape, dtype=dtype)
    machine.run("gelu", [x, y], ())
    assert_close(y, reference.gelu(wide(x)), 1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (100, 129), (300, 264), (17, 1280)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_both_with_sums(machine, shape, dtype, accumulate):
    x, grad, row = random(1, *shape, dtype=dtype, scale=3.0), random(2, *shape, dtype=dtype), random(3, shape[1])
    sums, y = row.copy() if accumulate else poison(shape[1]), poison(*shape, dtype=dtype)
    expected = wide(grad) * reference.gelu_slope(wide(x))
    machine.run("gelu_and_backward", [x, y, grad, sums], (accumulate,))
    assert_close(y, reference.gelu(wide(x)), 1e-6)
    assert_close(grad, expected, 2e-6)
    assert_close(sums, expected.sum(axis=0) + (row if accumulate else 0), 2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends_of_the_range(machine, dtype):
    x = typed(np.array([[-(2.0**20), -100, -20, 0, 20, 100, 2.0**20]], np.float32), dtype)
    grad, whole = typed(np.ones(x.shape, np.float32), dtype), [[0, 0, 0, 0, 20, 100, 2.0**20]]
    y, again = poison(*x.shape, dtype=dtype), poison(*x.shape, dtype=dtype)
    machine.run("gelu", [x, y], ())
    machine.run("gelu_and_backward", [x, again, grad, poison(7)], (False,))
    np.testing.assert_array_equal(wide(y), whole)
    np.testing.assert_array_equal(wide(again), whole)
    np.testing.assert_allclose(wide(grad), [[0, 0, 0, 0.5, 1, 1, 1]], atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [3, 16])
def test_nan_and_infinity_are_kept(machine, dtype, columns):
    x, grad = np.ones((1, columns), np.float32), np.ones((1, columns), np.float32)
    x[0, :2], grad[0, 2] = (np.nan, np.inf), np.nan
    x, grad, y = typed(x, dtype), typed(grad, dtype), typed(np.zeros_like(x), dtype)
    machine.run("gelu", [x, y], ())
    assert np.isnan(wide(y)[0, 0])
    assert wide(y)[0, 1] == np.inf
    machine.run("gelu_and_backward", [x, y, grad, poison(columns)], (False,))
    assert np.isnan(wide(grad)[0, 0])
    assert np.isnan(wide(grad)[0, 2])
    grad, sums = typed(np.ones((1, columns), np.float32), dtype), poison(columns)
    machine.run("gelu_and_backward", [x, y, grad, sums], (False,))
    assert np.isnan(wide(y)[0, 0]) and wide(y)[0, 1] == np.inf
    assert np.isnan(wide(grad)[0, 0]) and np.isnan(sums[0])
    assert np.isfinite(wide(grad)[0, 2:]).all() and np.isfinite(sums[2:]).all()
