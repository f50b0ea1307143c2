"""AdamW bit for bit against float32 NumPy; squared norms in float64; no fused multiply-add in the machine code."""

import platform
import re

import numpy as np
import pytest
from numba import njit

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
