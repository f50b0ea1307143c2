"""AdamW on a real GPU against the CPU, bit for bit, on millions of values: its placement must change no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gpu.machine import HardMachine
from tests.kernels.test_adamw import HYPER, assert_equals_the_cpu

pytestmark = pytest.mark.gpu


@pytest.fixture
def count(rehearsed: bool) -> int:
    return 10_000 if rehearsed else 4_000_003


@pytest.mark.parametrize("decay", [False, True])
def test_the_numbers_of_a_training(machine: HardMachine, count: int, decay: bool) -> None:
    random = np.random.default_rng(1)
    w, g, m, v = (random.standard_normal((4, count), np.float32).T * np.float32([0.02, 1e-3, 1e-4, 1e-3])).T.copy()
    np.square(v, out=v)
    assert_equals_the_cpu(machine, [w, g, m, v], HYPER, decay)


def test_numbers_of_every_size(machine: HardMachine, count: int) -> None:
    """Operands have any exponent, subnormal numbers included: neither side may flush to zero."""
    random = np.random.default_rng(2)
    scale = np.exp2(random.integers(-149, 127, (4, count))).astype(np.float32)
    w, g, m, v = scale * random.uniform(-2, 2, (4, count)).astype(np.float32)
    with np.errstate(all="ignore"):
        assert_equals_the_cpu(machine, [w, g, m, np.abs(v)], HYPER, True)


def test_any_bits(machine: HardMachine, count: int) -> None:
    tiles: Any = np.random.default_rng(3).integers(0, 2**32, (4, count), np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        assert_equals_the_cpu(machine, list(tiles), HYPER, True)
