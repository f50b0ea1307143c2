"""Choosing a token: never from logits that say nothing."""

from __future__ import annotations

import numpy as np
import pytest

from asynctile.errors import AsynctileError
from asynctile.layers.sampling import Sampler


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_named(value: float, temperature: float) -> None:
    logits = np.arange(5, dtype=np.float32)
    logits[2:4] = value
    with pytest.raises(AsynctileError, match="2 of the model's 5 logits are not finite"):
        Sampler(temperature, 3, 1).choose(logits)


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_close_to_no_temperature_the_likeliest_is_taken(temperature: float) -> None:
    logits = np.array([3.0e38, -3.0e38, 3.2e38, 0.0], np.float32)
    assert {Sampler(temperature, None, seed).choose(logits) for seed in range(20)} == {2}
