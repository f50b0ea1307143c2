"""gemm in its four forms against float64 in every mixture of dtypes; outputs that are only written start as NaN."""

import numpy as np
import pytest

from tests.cuda.build import library, missing
from tests.cuda.machine import SoftMachine
from tests.kernels.values import DTYPES, assert_close, poison, random, wide

SIZES = [(1, 1, 1), (3, 17, 5), (100, 40, 33), (70, 64, 264)]


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize(("dtype", "out"), [("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32")])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gemm(machine, rows, inner, columns, dtype, out, ta, tb, accumulate):
    a = random(1, *((inner, rows) if ta else (rows, inner)), dtype=dtype)
    b = random(2, *((columns, inner) if tb else (inner, columns)), dtype=dtype)
    bias, before = random(3, columns), random(4, rows, columns, dtype=out)
    product = (wide(a).T if ta else wide(a)) @ (wide(b).T if tb else wide(b))
    expected = product + (wide(before) if accumulate else 0)
    c = before.copy() if accumulate else poison(rows, columns, dtype=out)
    machine.run("gemm", [a, b, c], (ta, tb, accumulate))
    assert_close(c, expected, 3e-6)
    c = before.copy() if accumulate else poison(rows, columns, dtype=out)
    machine.run("gemm_bias", [a, b, bias, c], (ta, tb, accumulate))
    # In bf16 the sum of c and bias is rounded before the product is added.
    assert_close(c, expected + bias, 1e-2 if out == "bf16" else 3e-6)


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize(("dtype", "out"), [("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32")])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
def test_gemm_onto(machine, rows, inner, columns, dtype, out, ta, tb):
    a = random(1, *((inner, rows) if ta else (rows, inner)), dtype=dtype)
    b = random(2, *((columns, inner) if tb else (inner, columns)), dtype=dtype)
    bias, source = random(3, columns), random(4, rows, columns, dtype=out)
    kept = source.copy()
    expected = (wide(a).T if ta else wide(a)) @ (wide(b).T if tb else wide(b)) + wide(source)
    c = poison(rows, columns, dtype=out)
    machine.run("gemm_onto", [a, b, source, c], (ta, tb))
    assert_close(c, expected, 3e-6)
    c = poison(rows, columns, dtype=out)
    machine.run("gemm_bias_onto", [a, b, bias, source, c], (ta, tb))
    assert_close(c, expected + bias, 1e-2 if out == "bf16" else 3e-6)
    assert source.tobytes() == kept.tobytes()


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize(("dtype", "out"), [("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32")])
def test_a_library_gets_the_bias_in_the_dtype_of_the_result(dtype, out):
    """The library knows no other dtype; the stand-in here asserts that."""
    a, b, bias = random(1, 70, 64, dtype=dtype), random(2, 64, 264, dtype=dtype), random(3, 264)
    source, kept = random(4, 70, 264, dtype=out), bias.copy()
    product = wide(a) @ wide(b) + bias
    for verb, given, params, expected in (
        ("gemm_bias", [], (False, False, False), product), ("gemm_bias_onto", [source], (False, False), product + wide(source)),
    ):  # fmt: skip
        c = poison(70, 264, dtype=out)
        SoftMachine(library(), fuses=True).run(verb, [a, b, bias, *given, c], params)
        assert_close(c, expected, 1e-2 if out == "bf16" else 3e-6)
    assert bias.tobytes() == kept.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_reaches_its_row_only(machine, dtype):
    a, b, bias, c = random(1, 40, 30), random(2, 30, 20, dtype=dtype), random(3, 20), poison(40, 20, dtype=dtype)
    a[7, 3] = np.nan
    a = a if dtype == "f32" else random(1, 40, 30, dtype=dtype)
    a[7, 3] = np.nan if dtype == "f32" else 0x7FC0
    machine.run("gemm_bias", [a, b, bias, c], (False, False, False))
    assert np.isnan(wide(c)[7]).all()
    assert np.isfinite(np.delete(wide(c), 7, axis=0)).all()
