"""The layout of arguments in memory for a driver, and the set of launchers."""

import ctypes
import struct

import numpy as np
import pytest

from asynctile import ops
from asynctile.kernels.cuda import KERNELS, Array, pack

#: Suffixes of a product's launcher name for operands that may join the product.
MORE = ("bias", "onto", "bias_onto")
#: Kernels of the verbs of attention for packed rows.
PACKED = ("attention_packed", "attention_packed_backward")


def test_arguments_lie_where_their_pointers_point():
    packed = pack([Array(2**47 + 1, (3,), np.dtype(np.float32)), True, -5, 0.1, 2**31 - 1, np.float64(0.1)])
    pointers = (ctypes.c_uint64 * 6).from_address(packed.address)
    types = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32, ctypes.c_float, ctypes.c_int32, ctypes.c_double)
    values = [kind.from_address(pointer).value for kind, pointer in zip(types, pointers, strict=True)]
    assert values == [2**47 + 1, 1, -5, float(np.float32(0.1)), 2**31 - 1, 0.1]


def test_no_arguments():
    assert pack([]).address


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_number_beyond_32_bits_is_an_error(value):
    with pytest.raises(struct.error):
        pack([value])


def test_an_argument_of_another_type_is_an_error():
    with pytest.raises(TypeError, match="not array"):
        pack([np.zeros(1)])


def test_every_verb_has_a_launcher():
    assert set(KERNELS) == {*ops.__all__, *PACKED, *(f"{verb}_{more}" for verb in ("gemm", "gemm_rows") for more in MORE)}


def test_tiles_too_large_for_the_scratch_are_refused():
    class Small:
        scratch, shared = Array(0, (1000,), np.dtype(np.float64)), 227 << 10

    def tile(*shape, dtype=np.float32):
        return Array(0, shape, np.dtype(dtype))

    with pytest.raises(ValueError, match="1001 sums of columns do not fit"):
        KERNELS["column_sums"](Small(), tile(5, 1001), tile(1001), False)
    with pytest.raises(ValueError, match="1002 sums of columns do not fit"):
        KERNELS["layernorm_gradients"](Small(), *[tile(5, 501)] * 2, tile(5, 2), *[tile(501)] * 2, False)
    with pytest.raises(ValueError, match="1001 sums of columns do not fit"):
        KERNELS["rmsnorm_heads_backward"](Small(), tile(5, 2002), tile(1001), tile(5, 2002), tile(1001), 2, 1e-5, False)
    rows, pair, row = tile(5, 1001), tile(5, 2), tile(1001)
    with pytest.raises(ValueError, match="1001 sums of columns do not fit"):
        KERNELS["rmsnorm_whole_backward"](Small(), rows, rows, tile(5, 1), row, rows, row, False, False)
    with pytest.raises(ValueError, match="1001 sums of columns do not fit"):
        KERNELS["layernorm_whole_backward"](Small(), rows, rows, pair, row, rows, row, row, False, False)
    with pytest.raises(ValueError, match="64001 table rows does not fit in 8000 bytes"):
        KERNELS["embed_tokens_backward"](Small(), tile(1, dtype=np.int32), tile(1, 8), tile(64001, 8), 0)
