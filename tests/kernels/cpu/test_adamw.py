"""AdamW bit for bit against float32 NumPy; squared norms in float64; no fused multiply-add in the machine code."""

import platform
import re

import numpy as np
import pytest
from numba import njit

from asynctile.kernels.bf16 import to_bf16
from asynctile.kernels.cpu import KERNELS
from asynctile.kernels.cpu.jit import SIGNATURES
from tests import verbs
from tests.kernels.reference import random

HYPER = np.array([0.37, 0.9, 1 - 0.9, 0.95, 1 - 0.95, 1 - 3e-5, 3e-4 / (1 - 0.9**3), np.sqrt(1 - 0.95**3), 1e-8])


@pytest.mark.parametrize("shape", [(1,), (17,), (1000,), (3, 17), (129, 100)])
@pytest.mark.parametrize("decay", [False, True])
def test_the_update_has_the_bits_of_numpy(shape, decay):
    hyper, number = HYPER.astype(np.float32), np.full(1, np.nan)
    w, g, m, v = random(1, *shape), random(2, *shape), random(3, *shape), np.abs(random(4, *shape))
    g.reshape(-1)[0] = 0.0
    expected = [x.copy() for x in (w, m, v)]
    verbs.adamw(expected[0], g, *expected[1:], hyper, decay, 0, np.zeros(1))
    KERNELS["adamw"](w, g, m, v, hyper, decay, 0, number)
    for found, wanted in zip((w, m, v), expected, strict=True):
        assert found.tobytes() == wanted.tobytes()
    norm = float((g.astype(np.float64) ** 2).sum())
    assert number[0] == pytest.approx(norm, rel=1e-13)
    KERNELS["sum_squares"](g, 0, number)
    assert number[0] == pytest.approx(norm, rel=1e-13)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (129, 100)])
@pytest.mark.parametrize("decay", [False, True])
def test_the_update_with_a_copy_has_the_same_bits(shape, decay):
    """This holds where weights overflow too: bf16 has its own infinities and NaN."""
    hyper = HYPER.astype(np.float32)
    w, g, m, v = random(1, *shape), random(2, *shape), random(3, *shape), np.abs(random(4, *shape))
    w.reshape(-1)[-1], g.reshape(-1)[0] = np.float32(3.4e38), np.nan
    w.reshape(-1).view(np.uint32)[:1] = 0x7FFFFFFF  # a NaN that rounding would carry to -0
    twins, copy = [x.copy() for x in (w, g, m, v)], np.zeros(shape, np.uint16)
    number, other = np.zeros(1), np.zeros(1)
    KERNELS["adamw"](w, g, m, v, hyper, decay, 0, number)
    KERNELS["adamw_bf16"](*twins, hyper, copy, decay, 0, other)
    for found, wanted in zip(twins, (w, g, m, v), strict=True):
        assert found.tobytes() == wanted.tobytes()
    assert np.array_equal(copy, to_bf16(w))
    assert np.isnan(other[0]) and np.isnan(number[0])
    g.reshape(-1)[0] = 2.0
    KERNELS["adamw_bf16"](w, g, m, v, hyper, copy, decay, 0, number)
    assert number[0] == pytest.approx(float((g.astype(np.float64) ** 2).sum()), rel=1e-13)


def test_copies_are_rounded_to_even_from_the_middle():
    """A step of length zero changes no weight, so the rounded values are known to the bit."""
    hyper, zeros = HYPER.astype(np.float32), np.zeros((64, 100), np.float32)
    hyper[6] = 0.0
    upper = np.random.default_rng(1).integers(0, 0x7F00, zeros.size).astype(np.uint32)
    w = ((upper << 16) + 0x8000).view(np.float32).reshape(zeros.shape)
    copy = np.zeros(zeros.shape, np.uint16)
    KERNELS["adamw_bf16"](w, zeros, zeros.copy(), zeros.copy(), hyper, copy, False, 0, np.zeros(1))
    assert np.array_equal(copy.reshape(-1), upper + upper % 2)


@pytest.mark.parametrize("shape", [(1,), (7,), (63,), (4999,), (3, 17), (31, 33), (129, 100)])
@pytest.mark.parametrize("seed", range(5))
def test_both_kernels_report_the_same_bits(shape, seed):
    """A step takes its norm from one or the other, depending on where the update runs."""
    g, one, other = random(seed, *shape) * np.exp(3 * random(seed + 50, *shape)), np.full(1, np.nan), np.full(1, np.nan)
    KERNELS["sum_squares"](g, 0, one)
    w, m, v = (np.ones_like(g) for _ in range(3))
    KERNELS["adamw"](w, g, m, v, HYPER.astype(np.float32), True, 0, other)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_reach_the_norm(value):
    g, number = random(1, 100), np.zeros(1)
    g[77] = value
    KERNELS["sum_squares"](g, 0, number)
    assert not np.isfinite(number[0])
    w, m, v = random(2, 100), random(3, 100), np.ones(100, np.float32)
    KERNELS["adamw"](w, g, m, v, HYPER.astype(np.float32), True, 0, number)
    assert not np.isfinite(number[0])
    assert not np.isfinite(m[77])


@pytest.mark.parametrize(("shape", "padding"), [((3, 17), 17), ((129, 100), 700), ((1, 1), 1)])
def test_padding_counts_in_no_norm_and_becomes_zero(shape, padding):
    """The padding may have held anything; elements before it are updated as if they were alone."""
    hyper, copy, number = HYPER.astype(np.float32), np.full(shape, 0x7FC0, np.uint16), np.full((3, 1), np.nan)
    w, g, m, v = random(1, *shape), random(2, *shape), random(3, *shape), np.abs(random(4, *shape))
    count = w.size - padding
    alone, twins = [x.reshape(-1)[:count].copy() for x in (w, g, m, v)], [x.copy() for x in (w, g, m, v)]
    for tile in (w, g, m, v, *twins):
        tile.reshape(-1)[count:] = np.nan
    KERNELS["sum_squares"](g, padding, number[0])
    KERNELS["adamw_bf16"](w, g, m, v, hyper, copy, True, padding, number[1])
    KERNELS["adamw"](*twins, hyper, True, padding, number[2])
    expected = np.zeros(1)
    KERNELS["adamw"](*alone, hyper, True, 0, expected)
    assert (number == expected).all()
    for found, twin, wanted in zip((w, m, v), (twins[0], *twins[2:]), (alone[0], *alone[2:]), strict=True):
        assert found.tobytes() == twin.tobytes()
        assert found.reshape(-1)[:count].tobytes() == wanted.tobytes() and not found.reshape(-1)[count:].any()
    assert np.array_equal(copy, to_bf16(w))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 instructions")
@pytest.mark.parametrize("name", ["adamw", "adamw_bf16"])
def test_the_update_is_vectorized_and_not_contracted(name):
    function = KERNELS[name]
    options = {name: value for name, value in function.targetoptions.items() if name not in ("cache", "nopython")}
    fresh = njit(**options)(function.py_func)  # code from the cache on disk cannot be shown
    fresh.compile(SIGNATURES[name][-1])
    code = fresh.inspect_asm(fresh.signatures[0])
    assert not re.search(r"fn?m(add|sub)\w*[ps]s\b", code)
    assert re.search(r"v?sqrtps", code)
    assert re.search(r"v?divps", code)
