"""AdamW with the bits of the CPU's kernel, and sums of squares in float64."""

import numpy as np
import pytest

from asynctile.kernels.bf16 import to_bf16
from asynctile.kernels.cpu import KERNELS
from tests.kernels.values import poison, random, wide

HYPER = np.array(
    [0.37, 0.9, 1 - 0.9, 0.95, 1 - 0.95, 1 - 3e-5, 3e-4 / (1 - 0.9**3), np.sqrt(1 - 0.95**3), 1e-8], np.float32
)
SHAPES = [(1, 1), (1, 17), (1, 1000), (3, 17), (129, 100)]
#: Each with both signs: zero, subnormal, smallest normal, ordinary, ones whose squares overflow, largest, infinity.
MAGNITUDES = (0.0, 1e-45, 1e-40, 1.1754944e-38, 1e-20, 0.3, 1.0, 77.0, 1e18, 3e19, 3.4028235e38, np.inf, np.nan)


def assert_equal_bits(found, expected):
    """NaN may have any bits, because machines differ in the NaN that an operation makes."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def assert_equals_the_cpu(machine, tiles, hyper, decay, padding=0):
    expected, number = [tile.copy() for tile in tiles], np.zeros(1)
    KERNELS["adamw"](*expected, hyper, decay, padding, number)
    plain, found = [tile.copy() for tile in tiles], poison(1).astype(np.float64)
    machine.run("adamw", [*plain, hyper], (decay, padding), found)
    for one, other in zip(plain, expected, strict=True):
        assert_equal_bits(one, other)
    assert found[0] == pytest.approx(number[0], rel=1e-13, nan_ok=True)
    # The same with a copy of the weights in bf16.
    copied, copy, found = [tile.copy() for tile in tiles], poison(*tiles[0].shape, dtype="bf16"), np.zeros(1)
    machine.run("adamw_bf16", [*copied, hyper, copy], (decay, padding), found)
    for one, other in zip(copied, expected, strict=True):
        assert_equal_bits(one, other)
    nan = np.isnan(copied[0])
    np.testing.assert_array_equal(np.isnan(wide(copy)), nan)
    np.testing.assert_array_equal(copy[~nan], to_bf16(copied[0])[~nan])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("decay", [False, True])
def test_random_values(machine, shape, decay):
    w, g, m, v = random(1, *shape), random(2, *shape), random(3, *shape), np.abs(random(4, *shape))
    g.reshape(-1)[0] = 0.0
    assert_equals_the_cpu(machine, [w, g, m, v], HYPER, decay)


def test_blocks_go_through_a_large_tile_in_several_steps(machine):
    w, g, m, v = (random(seed, 1100, 1024) for seed in range(4))
    assert_equals_the_cpu(machine, [w, g, m, np.abs(v)], HYPER, True)


@pytest.mark.parametrize("decay", [False, True])
def test_every_kind_of_float_in_every_place(machine, decay):
    values = np.array([*MAGNITUDES, *(-x for x in MAGNITUDES)], np.float32)
    w, g, m, v = (x.reshape(1, -1).copy() for x in np.meshgrid(values[3::4], values, values[::2], values, indexing="ij"))
    with np.errstate(all="ignore"):
        assert_equals_the_cpu(machine, [w, g, m, v], HYPER, decay)


def test_random_bits(machine):
    bits = np.random.default_rng(1).integers(0, 2**32, (4, 200, 100), np.uint32)
    with np.errstate(all="ignore"):
        assert_equals_the_cpu(machine, list(bits.view(np.float32)), HYPER, True)


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("step", [1e-12, 1.0])
def test_other_constants(machine, factor, step):
    hyper = HYPER.copy()
    hyper[0], hyper[6], hyper[7] = factor, step, 1e-2
    w, g = random(1, 9, 111), random(2, 9, 111, scale=1e-10)
    m, v = random(3, 9, 111, scale=1e-12), random(4, 9, 111, scale=1e-10) ** 2
    assert_equals_the_cpu(machine, [w, g, m, v], hyper, True)


@pytest.mark.parametrize("shape", [*SHAPES, (1057, 1024)])
def test_sum_squares(machine, shape):
    g, number = random(1, *shape), np.full(1, np.nan)
    machine.run("sum_squares", [g], (0,), number)
    assert number[0] == pytest.approx(float((wide(g) ** 2).sum()), rel=1e-13)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 77, 99])
def test_values_that_are_not_finite_reach_the_norm(machine, value, place):
    g, number = random(1, 1, 100), np.zeros(1)
    g[0, place] = value
    machine.run("sum_squares", [g], (0,), number)
    assert not np.isfinite(number[0])
    w, m, v = random(2, 1, 100), random(3, 1, 100), np.ones((1, 100), np.float32)
    machine.run("adamw", [w, g, m, v, HYPER], (True, 0), number)
    assert not np.isfinite(number[0])
    assert not np.isfinite(m[0, place])


@pytest.mark.parametrize(("shape", "padding"), [((3, 17), 17), ((129, 100), 700), ((8, 5), 35), ((1100, 1024), 7168)])
def test_padding_counts_in_no_norm_and_becomes_zero(machine, shape, padding):
    """The padding may have held anything, in each of the tiles and in the copy."""
    w, g, m, v = (random(seed, *shape) for seed in range(4))
    tiles = [w, g, m, np.abs(v)]
    for tile in tiles:
        tile.reshape(-1)[tile.size - padding :] = np.nan
    assert_equals_the_cpu(machine, tiles, HYPER, True, padding)
    copy, number, squares = poison(*shape, dtype="bf16"), np.zeros(1), np.zeros(1)
    machine.run("sum_squares", [g], (padding,), squares)
    machine.run("adamw_bf16", [*tiles, HYPER, copy], (True, padding), number)
    for tile in (w, m, tiles[3], copy):
        assert not tile.reshape(-1)[tile.size - padding :].any()
        assert np.isfinite(wide(tile)).all()
    assert number[0] == squares[0] == pytest.approx(float((wide(g).reshape(-1)[: g.size - padding] ** 2).sum()), rel=1e-13)
