"""The slope of a function in float64 by differences, to check gradients against a formula that is not the kernel's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
#: The error of the difference is about STEP^4, that of rounding about 1e-16 / STEP.
STEP = 1e-3


def slope(function: Callable[[Array], Array], x: Array, direction: Array, weights: Array) -> float:
    """Return the derivative of sum(weights function(x)) along a direction, by central differences of fourth order."""

    def at(step: float) -> float:
        return float((weights * function(x + step * direction)).sum())

    return (8 * (at(STEP) - at(-STEP)) - (at(2 * STEP) - at(-2 * STEP))) / (12 * STEP)


def assert_slope(gradient: Array, function: Callable[[Array], Array], x: Array, weights: Array, tolerance: float) -> None:
    """Assert that a gradient of sum(weights function(x)) predicts its slopes along three random directions."""
    for seed in range(3):
        direction = np.random.default_rng(seed).standard_normal(x.shape)
        found, expected = (gradient * direction).sum(), slope(function, x, direction, weights)
        scale = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs(found - expected) <= tolerance * max(float(scale), 1e-30), (found, expected, scale)
