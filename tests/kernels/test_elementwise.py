"""copy with its conversions, add, fill, scale and column_sums."""

import numpy as np
import pytest

from asynctile.kernels import cpu
from asynctile.kernels.bf16 import from_bf16, to_bf16
from tests.kernels.values import DTYPES, poison, random, typed, wide

SHAPES = [(1,), (17,), (3, 5), (129, 100)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_copy_rounds_to_nearest_even(machine, shape, source, target):
    x, y = random(1, *shape, dtype=source), poison(*shape, dtype=target)
    machine.run("copy", [x, y], ())
    assert y.tobytes() == typed(wide(x).astype(np.float32), target).tobytes()


@pytest.mark.parametrize("target", ["bf16"])
def test_copy_rounds_every_kind_of_float(machine, target):
    bits = np.random.default_rng(1).integers(0, 2**32, 100_000, np.uint32)
    bits[:6] = 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0x00000001, 0x80000000  # ties, to infinity, tiny, -0
    x, y = bits.view(np.float32), poison(bits.size, dtype=target)
    machine.run("copy", [x, y], ())
    nan = np.isnan(x)
    assert nan.any()
    np.testing.assert_array_equal(np.isnan(wide(y)), nan)
    np.testing.assert_array_equal(y[~nan], to_bf16(x)[~nan])


@pytest.mark.parametrize("dtype", ["bf16"])
def test_a_copy_in_one_dtype_keeps_every_bit(machine, dtype):
    bits, y = np.arange(2**16, dtype=np.uint16), poison(2**16, dtype=dtype)
    machine.run("copy", [bits, y], ())
    np.testing.assert_array_equal(y, bits)


def test_a_copy_to_float32_is_exact_for_every_bf16_number(machine):
    bits, y = np.arange(2**16, dtype=np.uint16).reshape(256, 256), poison(256, 256)
    machine.run("copy", [bits, y], ())
    numbers = np.isfinite(from_bf16(bits))
    assert y[numbers].tobytes() == from_bf16(bits)[numbers].tobytes()
    np.testing.assert_array_equal(y, from_bf16(bits))


@pytest.mark.parametrize("shape", SHAPES)
def test_add_has_the_bits_of_the_cpu_and_leaves_the_source(machine, shape):
    x, y = random(1, *shape), random(2, *shape)
    source, expected = x.copy(), y.copy()
    cpu.KERNELS["add"](x, expected)
    machine.run("add", [source, y], ())
    assert y.tobytes() == expected.tobytes()
    assert source.tobytes() == x.tobytes()


def test_add_shows_nan(machine):
    x, y = random(1, 20, 21), random(2, 20, 21)
    x[11, 4], x[19, 20], y[7, 3] = np.nan, np.nan, np.inf
    x[7, 3] = -np.inf
    machine.run("add", [x, y], ())
    assert np.argwhere(np.isnan(y)).tolist() == [[7, 3], [11, 4], [19, 20]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fill(machine, shape, dtype):
    y = poison(*shape, dtype=dtype)
    machine.run("fill", [y], (0.1,))
    assert (y == typed(np.full(shape, 0.1, np.float32), dtype)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_rounds_each_element_once(machine, shape, dtype):
    y = random(1, *shape, dtype=dtype)
    expected = typed(wide(y).astype(np.float32) * np.float32(0.3), dtype)
    machine.run("scale", [y], (0.3,))
    assert y.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (8, 5), (100, 132), (1001, 8), (17, 1280), (300, 520)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_column_sums(machine, shape, dtype, accumulate):
    x, before = typed(wide(random(1, *shape)).astype(np.float32) + np.float32(3), dtype), random(2, shape[1])
    sums = before.copy() if accumulate else poison(shape[1])
    machine.run("column_sums", [x, sums], (accumulate,))
    expected = wide(x).sum(axis=0) + (before if accumulate else 0)
    np.testing.assert_allclose(sums, expected, rtol=4e-7, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (100, 132), (1001, 8), (17, 1280), (300, 520)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_column_sums_copy(machine, shape, accumulate):
    x, before, copy = random(1, *shape) + np.float32(3), random(2, shape[1]), poison(*shape, dtype="bf16")
    sums, expected = (before.copy() if accumulate else poison(shape[1]) for _ in range(2))
    machine.run("column_sums", [x, expected], (accumulate,))
    machine.run("column_sums_copy", [x, sums, copy], (accumulate,))
    assert sums.tobytes() == expected.tobytes()
    assert copy.tobytes() == to_bf16(x).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_column_sums_shows_nan(machine, dtype):
    x, sums = wide(random(1, 20, 20)).astype(np.float32), poison(20)
    x[11, 4], x[12, 4] = np.inf, -np.inf
    machine.run("column_sums", [typed(x, dtype), sums], (False,))
    assert np.isnan(sums[4])
    assert np.isfinite(np.delete(sums, 4)).all()
