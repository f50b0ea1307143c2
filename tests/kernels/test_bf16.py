"""bf16 in NumPy: rounding to nearest, ties to even, every special value."""

from __future__ import annotations

import numpy as np
import pytest

from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.program.precision import BF16

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_every_bf16_comes_back_unchanged() -> None:
    values = from_bf16(EVERY)
    numbers = ~np.isnan(values)
    assert np.array_equal(to_bf16(values)[numbers], EVERY[numbers])
    assert np.isnan(from_bf16(to_bf16(values)[~numbers])).all()


def test_values_between_two_round_to_the_nearest_and_from_the_middle_to_even() -> None:
    """Covers, for every finite positive number and the next one, a quarter, half and three quarters of the way."""
    low = EVERY[: 0x7F7F]
    below, above = (from_bf16(bits).astype(np.float64) for bits in (low, low + np.uint16(1)))
    for share, expected in ((0.25, low), (0.5, low + low % 2), (0.75, low + 1)):
        between = (below + share * (above - below)).astype(np.float32)
        assert np.array_equal(to_bf16(between), expected), share
        assert np.array_equal(to_bf16(-between), expected | 0x8000), share


def test_the_smallest_step_from_the_middle_decides() -> None:
    middle = from_bf16(np.array([0x3F80, 0x3F81], np.uint16)).mean(dtype=np.float64).astype(np.float32)
    around = np.array([np.nextafter(middle, np.float32(0)), middle, np.nextafter(middle, np.float32(9))])
    assert to_bf16(around).tolist() == [0x3F80, 0x3F80, 0x3F81]


def test_values_that_are_not_finite_are_kept() -> None:
    infinite = np.array([np.inf, -np.inf, np.finfo(np.float32).max, 0.0, -0.0], np.float32)
    assert to_bf16(infinite).tolist() == [0x7F80, 0xFF80, 0x7F80, 0, 0x8000]
    nan = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(from_bf16(to_bf16(nan))).all()


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 401)])
def test_shapes_and_layouts(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    bits = to_bf16(x)
    assert (bits.shape, bits.dtype) == (shape, BF16)
    assert np.array_equal(to_bf16(x.T), bits.T)
    assert np.all(np.abs(from_bf16(bits) - x) <= np.abs(x) / 256)
    assert from_bf16(bits).dtype == np.float32
