"""gelu and its derivative against float64, to the ends of the range."""

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels import reference
from tests.kernels.reference import error, poison, random


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (100, 129), (512, 64)])
def test_gelu(shape):
    x, y, grad = random(1, *shape, scale=3.0), poison(*shape), random(2, *shape)
    expected = grad * reference.gelu_slope(x)
    KERNELS["gelu"](x, y)
    np.testing.assert_allclose(y, reference.gelu(x), rtol=1e-5, atol=1e-7)
    KERNELS["gelu_backward"](x, grad)
    assert error(grad, expected) < 2e-6


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (8, 5), (100, 129), (17, 1500)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gelu_derivative_and_sums_in_one_pass_have_the_bits_of_three_passes(shape, accumulate):
    x, grad, row = random(1, *shape, scale=3.0), random(2, *shape), random(3, shape[1])
    expected, found = grad.copy(), grad.copy()
    expected_sums, sums = (row.copy() if accumulate else poison(shape[1]) for _ in range(2))
    expected_y, y = poison(*shape), poison(*shape)
    KERNELS["gelu"](x, expected_y)
    KERNELS["gelu_backward"](x, expected)
    KERNELS["column_sums"](expected, expected_sums, accumulate)
    KERNELS["gelu_and_backward"](x, y, found, sums, accumulate)
    assert y.tobytes() == expected_y.tobytes()
    assert found.tobytes() == expected.tobytes()
    assert sums.tobytes() == expected_sums.tobytes()
    assert np.isfinite(sums).all()


def test_ends_of_the_range():
    x = np.array([[-1e6, -100, -20, 0, 20, 100, 1e6]], np.float32)
    y, grad = np.full_like(x, np.nan), np.ones_like(x)
    KERNELS["gelu"](x, y)
    KERNELS["gelu_backward"](x, grad)
    np.testing.assert_array_equal(y, [[0, 0, 0, 0, 20, 100, 1e6]])
    np.testing.assert_allclose(grad, [[0, 0, 0, 0.5, 1, 1, 1]], atol=1e-30)


def test_nan_and_infinity_are_kept():
    x = np.array([[np.nan, np.inf, 1.0]], np.float32)
    y, grad = np.zeros_like(x), np.ones_like(x)
    grad[0, 2] = np.nan
    KERNELS["gelu"](x, y)
    KERNELS["gelu_backward"](x, grad)
    assert np.isnan(y[0, 0])
    assert y[0, 1] == np.inf
    assert np.isnan(grad[0, 0])
    assert np.isnan(grad[0, 2])
