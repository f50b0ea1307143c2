"""The same numbers at other addresses, or in two threads at once, give the same bits."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from asynctile.kernels.cpu import KERNELS
from tests.kernels.calls import every_call


def run(name, call, shift):
    arrays, params, reports = call
    moved = []
    for array in [*arrays, *([np.zeros(1)] * reports)]:
        room = np.zeros(array.size + 16, array.dtype)
        piece = room[shift : shift + array.size].reshape(array.shape)
        piece[...] = array
        moved.append(piece)
    KERNELS[name](*moved[: len(arrays)], *params, *moved[len(arrays) :])
    return b"".join(array.tobytes() for array in moved)


@pytest.mark.parametrize("name", KERNELS)
def test_other_addresses_and_two_threads_give_the_same_bits(name):
    call = every_call("f32")[name]
    expected = run(name, call, 0)
    assert all(run(name, call, shift) == expected for shift in (1, 3, 8, 13))
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda shift: run(name, call, shift), range(16))) == {expected}
