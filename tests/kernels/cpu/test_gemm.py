"""gemm in its four forms against float64; outputs that are only written start as NaN."""

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels.reference import error, poison, random

SIZES = [(1, 1, 1), (3, 17, 5), (100, 129, 33), (129, 100, 257), (64, 64, 64), (17, 1, 100)]


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gemm(rows, inner, columns, ta, tb, accumulate):
    a = random(1, *((inner, rows) if ta else (rows, inner)))
    b = random(2, *((columns, inner) if tb else (inner, columns)))
    bias = random(3, columns)
    before = random(4, rows, columns)
    product = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    expected = product + (before if accumulate else 0)
    c = before.copy() if accumulate else poison(rows, columns)
    KERNELS["gemm"](a, b, c, ta, tb, accumulate)
    assert error(c, expected) < 2e-6
    c = before.copy() if accumulate else poison(rows, columns)
    KERNELS["gemm_bias"](a, b, bias, c, ta, tb, accumulate)
    assert error(c, expected + bias) < 2e-6


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_gemm_onto_is_gemm_added_to_a_copy_bit_for_bit(rows, inner, columns, ta, tb):
    a = random(1, *((inner, rows) if ta else (rows, inner)))
    b = random(2, *((columns, inner) if tb else (inner, columns)))
    bias, source = random(3, columns), random(4, rows, columns)
    for verb, more in (("gemm", ()), ("gemm_bias", (bias,))):
        expected, c, kept = source.copy(), poison(rows, columns), source.copy()
        KERNELS[verb](a, b, *more, expected, ta, tb, True)
        KERNELS[f"{verb}_onto"](a, b, *more, kept, c, ta, tb)
        assert c.tobytes() == expected.tobytes()
        assert kept.tobytes() == source.tobytes()


def test_nan_reaches_its_row_only():
    a, b, c = random(1, 40, 30), random(2, 30, 20), poison(40, 20)
    a[7, 3] = np.nan
    KERNELS["gemm"](a, b, c, False, False, False)
    assert np.isnan(c[7]).all()
    assert np.isfinite(np.delete(c, 7, axis=0)).all()
