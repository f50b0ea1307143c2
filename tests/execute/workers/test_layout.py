"""A call of a kernel as words: only for the exact types that it was compiled for."""

import numpy as np
import pytest
from numba import njit, types

from asynctile.execute.workers.layout import layout, native_of
from asynctile.execute.workers.native import REALS

TILE = ((3, 5), np.float32)


@njit(nogil=True)
def compiled(tile, flag, count, real, number):
    number[0] = count


@njit
def lazy(tile):
    tile[0, 0] = 1


@njit
def real(a, b, c, d, e, f):
    pass


@njit
def wide(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o):  # noqa: E741
    pass


@pytest.fixture(scope="module", autouse=True)
def compiled_here():
    """Compile all but `lazy`. Here, because processes that run other tests import this module as well."""
    compiled.compile(types.void(types.float32[:, ::1], types.boolean, types.int64, types.float64, types.float64[::1]))
    real.compile(types.void(*[types.float64] * (REALS + 1)))
    wide.compile(types.void(*[types.float32[:, ::1]] * 15))


def test_arrays_are_spread_over_words_and_floats_are_separate():
    block = layout(compiled, [TILE], (True, 7, 0.5), True)
    assert block.words.tolist() == [0, 0, *(0, 0, 15, 4, 0, 3, 5, 20, 4), 1, 7, *(0, 0, 1, 8, 0, 1, 8)]
    assert block.pointers == (6, 17) and block.reals == (0.5,) and block.count == 20
    (signature,) = compiled.signatures
    assert block.address == native_of(compiled, signature) != 0


@pytest.mark.parametrize(
    ("kernel", "operands", "params", "has_number"),
    [
        (compiled, [((3, 5), np.float64)], (True, 7, 0.5), True),
        (compiled, [((15,), np.float32)], (True, 7, 0.5), True),
        (compiled, [TILE], (1, 7, 0.5), True),
        (compiled, [TILE], (True, 7.0, 0.5), True),
        (compiled, [TILE], (True, 7, 0.5), False),
        (lazy, [TILE], (), False),
        (lazy.py_func, [TILE], (), False),
        (real, [], (0.5,) * (REALS + 1), False),
        (wide, [TILE] * 15, (), False),
    ],
)
def test_a_kernel_that_cannot_be_called_by_address_has_no_words(kernel, operands, params, has_number):
    assert layout(kernel, operands, params, has_number) is None
