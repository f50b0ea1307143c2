"""gemm_rows in its four forms against float64 in every mixture of dtypes, and the bits of each row that it has alone."""

import numpy as np
import pytest

from asynctile.program.precision import BF16
from tests.kernels.values import DTYPES, assert_close, poison, random, wide

SIZES = [(1, 1, 1), (1, 40, 64), (3, 17, 5), (9, 100, 33), (8, 64, 72), (20, 270, 136)]
MIXTURES = [("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32")]


def operands(rows, inner, columns, tb, dtype, out):
    a, b = random(1, rows, inner, dtype=dtype), random(2, *((columns, inner) if tb else (inner, columns)), dtype=dtype)
    return a, b, random(3, columns), random(4, rows, columns, dtype=out)


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize(("dtype", "out"), MIXTURES)
@pytest.mark.parametrize("tb", [False, True])
def test_gemm_rows(machine, rows, inner, columns, dtype, out, tb):
    a, b, bias, other = operands(rows, inner, columns, tb, dtype, out)
    a = np.vstack([a, np.full((2, inner), 0x7FC0 if dtype == "bf16" else np.nan, a.dtype)])
    product = wide(a)[:rows] @ (wide(b).T if tb else wide(b))
    for verb, more, added in (("gemm_rows", (), 0), ("gemm_rows_bias", (bias,), bias)):
        for accumulate in (False, True):
            c = other.copy() if accumulate else poison(rows, columns, dtype=out)
            machine.run(verb, [a, b, *more, c], (tb, accumulate))
            assert_close(c, product + added + (wide(other) if accumulate else 0), 3e-6)
        c, kept = poison(rows, columns, dtype=out), other.copy()
        machine.run(f"{verb}_onto", [a, b, *more, kept, c], (tb,))
        assert_close(c, product + added + wide(other), 3e-6)
        assert kept.tobytes() == other.tobytes()


@pytest.mark.parametrize(("inner", "columns"), [(17, 5), (100, 33), (264, 72)])
@pytest.mark.parametrize(("dtype", "out"), MIXTURES)
@pytest.mark.parametrize("tb", [False, True])
def test_a_row_keeps_its_bits_alone_anywhere_and_beside_any_rows(machine, inner, columns, dtype, out, tb):
    a, b, bias, source = operands(19, inner, columns, tb, dtype, out)
    alone = []
    for row in range(19):
        c = source[row : row + 1].copy()
        machine.run("gemm_rows_bias", [a[row : row + 1], b, bias, c], (tb, True))
        alone.append(c[0].tobytes())
    beside = a.copy()
    beside[::2] = 0x7FC0 if a.dtype == BF16 else np.nan
    for start, rows in ((0, 19), (3, 9), (1, 2), (11, 8)):
        for x in (a, beside):
            c = source[start : start + rows].copy()
            machine.run("gemm_rows_bias", [np.ascontiguousarray(x[start:]), b, bias, c], (tb, True))
            lost = np.isnan(wide(x[start : start + rows])).any(axis=1)
            assert np.isnan(wide(c[lost])).all()
            assert [c[row].tobytes() for row in np.flatnonzero(~lost)] == [alone[start + row] for row in np.flatnonzero(~lost)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tb", [False, True])
def test_a_weight_that_is_nan_reaches_its_column_only(machine, dtype, tb):
    a, b, _, c = operands(9, 50, 40, tb, dtype, "f32")
    b[(3, 7) if tb else (7, 3)] = 0x7FC0 if dtype == "bf16" else np.nan
    machine.run("gemm_rows", [a, b, c], (tb, False))
    assert np.isnan(c[:, 3]).all() and np.isfinite(np.delete(c, 3, axis=1)).all()
