"""swiglu and its gradient against float64, to the ends of the range."""

import numpy as np
import pytest

from tests import verbs
from tests.kernels.slopes import assert_slope
from tests.kernels.values import DTYPES, assert_close, poison, random, typed, wide

SHAPES = [(1, 1), (3, 17), (100, 129), (64, 64), (17, 1280)]


def activated(gate, up):
    y = np.empty(gate.shape)
    verbs.swiglu(gate, up, y)
    return y


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward(machine, shape, dtype):
    gate, up, grad = (random(seed, *shape, dtype=dtype, scale=scale) for seed, scale in ((1, 3.0), (2, 1.0), (3, 1.0)))
    dy, y, again, dgate = wide(grad), *(poison(*shape, dtype=dtype) for _ in range(3))
    machine.run("swiglu", [gate, up, y], ())
    machine.run("swiglu_and_backward", [gate, up, again, grad, dgate], ())
    share = 1 / (1 + np.exp(-wide(gate)))
    silu = wide(gate) * share
    assert_close(y, silu * wide(up), 1e-6)
    assert y.tobytes() == again.tobytes()
    assert_close(grad, dy * silu, 1e-6)
    assert_close(dgate, dy * wide(up) * share * (1 + wide(gate) * (1 - share)), 1e-6)


def test_gradients_are_the_slopes_of_the_activation(machine):
    gate, up, dy = random(1, 9, 40, scale=2.0), random(2, 9, 40), random(3, 9, 40)
    dup, dgate = dy.copy(), poison(9, 40)
    machine.run("swiglu_and_backward", [gate, up, poison(9, 40), dup, dgate], ())
    assert_slope(dgate, lambda gate: activated(gate, up), gate, dy, 1e-6)
    assert_slope(dup, lambda up: activated(gate, up), up, dy, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends_of_the_range(machine, dtype):
    gate = typed(np.array([[-(2.0**20), -100, 0, 100, 2.0**20]], np.float32), dtype)
    up, grad = (typed(np.full(gate.shape, value, np.float32), dtype) for value in (2.0, 1.0))
    y, again, dgate = (poison(*gate.shape, dtype=dtype) for _ in range(3))
    machine.run("swiglu", [gate, up, y], ())
    machine.run("swiglu_and_backward", [gate, up, again, grad, dgate], ())
    for found in (y, again):
        np.testing.assert_allclose(wide(found), [[0, 0, 0, 200, 2.0**21]], atol=1e-30)
    np.testing.assert_allclose(wide(grad), [[0, 0, 0, 100, 2.0**20]], atol=1e-30)
    np.testing.assert_allclose(wide(dgate), [[0, 0, 1, 2, 2]], atol=1e-30)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("columns", [3, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_reaches_what_follows_from_it_and_nothing_else(machine, which, columns, dtype):
    values = [random(seed, 2, columns) for seed in range(3)]
    values[which][1, 2] = np.nan
    gate, up, grad = (typed(x, dtype) for x in values)
    y, again, dgate = (poison(2, columns, dtype=dtype) for _ in range(3))
    machine.run("swiglu", [gate, up, y], ())
    machine.run("swiglu_and_backward", [gate, up, again, grad, dgate], ())
    for found, hit in ((y, which < 2), (again, which < 2), (grad, which != 1), (dgate, True)):
        bad = np.isnan(wide(found))
        assert bad[1, 2] == hit and bad.sum() == hit
