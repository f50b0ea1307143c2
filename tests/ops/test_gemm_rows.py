"""How gemm_rows accesses its tiles, and which tiles it refuses."""

import numpy as np
import pytest

from asynctile.ops import gemm_rows
from asynctile.storage.tile import Tile


def tile(name, *shape):
    return Tile(name, shape, np.dtype(np.float32))


A, B, C = tile("a", 9, 6), tile("b", 6, 5), tile("c", 4, 5)
BIAS, SOURCE = tile("bias", 5), tile("source", 4, 5)


def test_a_may_have_more_rows_than_the_product():
    made = gemm_rows(A, B, C)
    assert (made.kernel, made.operands, made.access) == ("gemm_rows", (A, B, C), "rrw")
    assert (made.params, made.flops) == ((False, False), 2 * 4 * 5 * 6)


def test_operands_that_join_the_product_come_before_it():
    assert gemm_rows(A, tile("b", 5, 6), C, tb=True, accumulate=True).access == "rru"
    made = gemm_rows(A, B, C, bias=BIAS)
    assert (made.kernel, made.operands, made.access) == ("gemm_rows_bias", (A, B, BIAS, C), "rrrw")
    made = gemm_rows(A, B, C, source=SOURCE)
    assert (made.kernel, made.operands, made.access, made.params) == ("gemm_rows_onto", (A, B, SOURCE, C), "rrrw", (False,))
    made = gemm_rows(A, B, C, bias=BIAS, source=SOURCE)
    assert (made.kernel, made.operands) == ("gemm_rows_bias_onto", (A, B, BIAS, SOURCE, C))


@pytest.mark.parametrize(("operands", "options", "message"), [
    ((tile("a", 3, 6), B, C), {}, "a has 3 rows, expected at least the 4 of c"),
    ((A, tile("b", 5, 6), C), {}, r"b has shape \(5, 6\), expected \(6, 5\)"),
    ((A, B, C), {"tb": True}, r"b has shape \(6, 5\), expected \(5, 6\)"),
    ((A, B, C), {"bias": tile("bias", 4)}, r"bias has shape \(4,\), expected \(5,\)"),
    ((A, B, C), {"source": tile("source", 9, 5)}, r"source has shape \(9, 5\), expected \(4, 5\)"),
    ((A, B, C), {"source": SOURCE, "accumulate": True}, "c cannot both accumulate and start from source; choose one"),
])  # fmt: skip
def test_operands_that_do_not_fit_are_refused(operands, options, message):
    with pytest.raises(ValueError, match=f"gemm_rows: {message}"):
        gemm_rows(*operands, **options)
