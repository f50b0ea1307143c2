"""Numbers in the dtypes of tiles, and the tolerances for a kernel's results."""

from __future__ import annotations

from typing import Any

import numpy as np

from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.program.precision import BF16
from tests.kernels import reference

Array = Any

DTYPES = ("f32", "bf16")
#: Half a unit in the last place of bf16, and as much again for a float32 that rounded to the other side.
BF16_ROUNDING = 2.0**-8


def typed(values: Array, dtype: str) -> Array:
    """Return float32 values in a tile's dtype."""
    return to_bf16(values) if dtype == "bf16" else values


def random(seed: int, *shape: int, dtype: str = "f32", scale: float = 1.0) -> Array:
    """Return new normal random numbers."""
    return typed(reference.random(seed, *shape, scale=scale), dtype)


def poison(*shape: int, dtype: str = "f32") -> Array:
    """Return an output that must be overwritten without being read."""
    return typed(reference.poison(*shape), dtype)


def wide(values: Array) -> Array:
    """Return a tile's values as float64."""
    return (from_bf16(values) if values.dtype == BF16 else values).astype(np.float64)


def assert_close(found: Array, expected: Array, tolerance: float) -> None:
    """Assert closeness: float32 within `tolerance` of the largest magnitude, bf16 also within the rounding of each number."""
    largest = max(float(np.max(np.abs(expected))), 1e-30)
    rounding = BF16_ROUNDING if found.dtype == BF16 else 0.0
    np.testing.assert_allclose(wide(found), expected, rtol=rounding, atol=tolerance * largest)
