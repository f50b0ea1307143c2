"""Every kernel of the CPU gives the same bits called by its address and called by Python."""

import numpy as np
import pytest
from numba import njit, typeof

from asynctile.execute.workers import native
from asynctile.execute.workers.layout import layout
from asynctile.kernels.bf16 import to_bf16
from asynctile.kernels.cpu import KERNELS, warm
from asynctile.kernels.cpu.jit import SIGNATURES
from tests.execute.workers.schedules import compiled, fail, mark, overdraw, room
from tests.kernels.calls import every_call
from tests.kernels.reference import random


@njit(nogil=True)
def call(function, scratch, words, count, reals):
    if count <= 16:
        return native.call(function, scratch, words, 16, reals)
    if count <= 48:
        return native.call(function, scratch, words, 48, reals)
    return native.call(function, scratch, words, 128, reals)


def by_address(block, arrays):
    """Call the kernel by its address; return its status."""
    words = np.full(room(block.count), -1, np.int64)  # words beyond the kernel's own arguments do not matter
    words[: block.count] = block.words
    words[list(block.pointers)] = [array.ctypes.data for array in arrays]
    reals = np.full(native.REALS, np.nan)
    reals[: len(block.reals)] = block.reals
    scratch = np.zeros(2, np.int64)
    return call(block.address, scratch.ctypes.data, words.ctypes.data, block.count, reals.ctypes.data)


def examples():
    """Yield (kernel, arrays, params, whether there is a number), at least one of each signature."""
    for dtype in ("f32", "bf16"):
        yield from ((name, *call) for name, call in every_call(dtype).items())
    rows = [random(seed, 300) for seed in range(3)]
    yield "adamw", [*rows, np.abs(rows[1]), np.abs(random(9, 9))], (False, 2), True
    yield "sum_squares", [rows[0]], (2,), True
    yield "copy", rows[:2], (), False
    yield "copy", [to_bf16(random(1, 30, 11)), random(2, 30, 11)], (), False
    yield "add", rows[:2], (), False
    yield "fill", rows[:1], (-0.25,), False
    yield "scale", rows[:1], (-0.25,), False


@pytest.fixture(scope="module", autouse=True)
def _ready():
    warm()


def test_a_kernel_called_by_address_gives_the_bits_of_the_same_kernel_called_by_python():
    seen = set()
    for name, arrays, params, has_number in examples():
        arrays = [*arrays, *([np.full(1, np.nan)] if has_number else [])]
        mine, theirs = ([array.copy() for array in arrays] for _ in range(2))
        count = len(arrays) - has_number
        block = layout(KERNELS[name], [(array.shape, array.dtype) for array in arrays[:count]], params, has_number)
        types = tuple(map(typeof, (*arrays[:count], *params, *arrays[count:])))
        if types not in SIGNATURES[name]:
            assert block is None, "the CPU has no such kernel"
            continue
        seen.add((name, types))
        assert by_address(block, mine) in (0, -2), name
        KERNELS[name](*theirs[:count], *params, *theirs[count:])
        assert [x.tobytes() for x in mine] == [x.tobytes() for x in theirs], name
        changed = [not np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(mine, arrays, strict=True)]
        assert any(changed), f"{name} changed nothing"
    assert seen == {(name, signature) for name in KERNELS for signature in SIGNATURES[name]}


def test_a_kernel_that_raises_or_finds_no_memory_reports_it_and_others_do_not():
    arrays = [np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64)]
    statuses = [
        by_address(layout(compiled(kernel), [(array.shape, array.dtype) for array in arrays], (0,), False), arrays)
        for kernel in (fail, overdraw, mark)
    ]
    assert statuses[0] not in (0, -2) and statuses[1] not in (0, -2) and statuses[2] in (0, -2)
    assert arrays[0] == 3, "each was called once"
