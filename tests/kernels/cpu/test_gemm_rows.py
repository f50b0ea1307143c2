"""gemm_rows in its four forms against float64, and the bits of each row that it has alone."""

import os
import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest

from asynctile.execute.workers.layout import layout
from asynctile.kernels.cpu import KERNELS
from asynctile.kernels.cpu.jit import prepare
from tests.kernels.reference import error, poison, random

SIZES = [(1, 1, 1), (3, 17, 5), (5, 129, 33), (12, 100, 257), (4, 64, 64), (17, 1, 100), (2, 96, 130), (21, 40, 47)]


def operands(rows, inner, columns, tb, more=0):
    a, b = random(1, rows + more, inner), random(2, *((columns, inner) if tb else (inner, columns)))
    return a, b, random(3, columns), random(4, rows, columns)


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("more", [0, 3])
def test_against_float64(rows, inner, columns, tb, more):
    a, b, bias, other = operands(rows, inner, columns, tb, more)
    product = a[:rows].astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    for accumulate in (False, True):
        expected = product + (other if accumulate else 0)
        c = other.copy() if accumulate else poison(rows, columns)
        KERNELS["gemm_rows"](a, b, c, tb, accumulate)
        assert error(c, expected) < 2e-6
        c = other.copy() if accumulate else poison(rows, columns)
        KERNELS["gemm_rows_bias"](a, b, bias, c, tb, accumulate)
        assert error(c, expected + bias) < 2e-6


@pytest.mark.parametrize(("rows", "inner", "columns"), SIZES)
@pytest.mark.parametrize("tb", [False, True])
def test_onto_is_an_accumulation_in_a_copy_bit_for_bit(rows, inner, columns, tb):
    a, b, bias, source = operands(rows, inner, columns, tb)
    for verb, more in (("gemm_rows", ()), ("gemm_rows_bias", (bias,))):
        expected, c, kept = source.copy(), poison(rows, columns), source.copy()
        KERNELS[verb](a, b, *more, expected, tb, True)
        KERNELS[f"{verb}_onto"](a, b, *more, kept, c, tb)
        assert c.tobytes() == expected.tobytes()
        assert kept.tobytes() == source.tobytes()


@pytest.mark.parametrize(("inner", "columns"), [(1, 1), (17, 5), (129, 33), (64, 64), (96, 130), (513, 47)])
@pytest.mark.parametrize("tb", [False, True])
def test_a_row_keeps_its_bits_alone_anywhere_and_beside_any_rows(inner, columns, tb):
    a, b, bias, source = operands(67, inner, columns, tb)
    alone = []
    for row in range(67):
        c = source[row : row + 1].copy()
        KERNELS["gemm_rows_bias"](a[row:], b, bias, c, tb, True)
        alone.append(c[0])
    beside = a.copy()
    beside[::2] = np.nan
    for rows in (*range(1, 20), 31, 48, 64, 67):
        for start in {0, 67 - rows}:
            c = source[start : start + rows].copy()
            KERNELS["gemm_rows_bias"](a[start:], b, bias, c, tb, True)
            assert c.tobytes() == b"".join(row.tobytes() for row in alone[start : start + rows])
        c = source[:rows].copy()
        KERNELS["gemm_rows_bias"](beside, b, bias, c, tb, True)
        assert c[1::2].tobytes() == b"".join(row.tobytes() for row in alone[1:rows:2])
        assert np.isnan(c[::2]).all()


@pytest.mark.parametrize("tb", [False, True])
def test_a_weight_that_is_nan_reaches_its_column_only(tb):
    a, b, _, c = operands(9, 50, 40, tb)
    b[(3, 7) if tb else (7, 3)] = np.nan
    KERNELS["gemm_rows"](a, b, c, tb, False)
    assert np.isnan(c[:, 3]).all() and np.isfinite(np.delete(c, 3, axis=1)).all()


#: Runs gemm_rows on the operands in a file, for a processor without AVX-512, and writes the result.
OTHER = """
import sys
import numpy as np
from asynctile.kernels.cpu import KERNELS
given = np.load(sys.argv[1])
made = {}
for tb in (False, True):
    made[str(tb)] = given["c"].copy()
    KERNELS["gemm_rows"](given["a"], given["bt" if tb else "b"], made[str(tb)], tb, True)
    (text,) = KERNELS["gemm_rows"].inspect_asm().values()
    assert "vfmadd" in text and "ymm" in text and "zmm" not in text
np.savez(sys.argv[2], **made)
"""


@pytest.mark.skipif(llvm.get_host_cpu_features().get("avx512f") is not True, reason="there is but one width of vectors")
def test_the_width_of_a_processors_vectors_changes_no_bit(tmp_path):
    a, c = random(1, 7, 75), random(2, 7, 85)
    b = random(3, 75, 85)
    bt = np.ascontiguousarray(b.T)
    np.savez(tmp_path / "given.npz", a=a, b=b, bt=bt, c=c)
    other = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma", "NUMBA_CACHE_DIR": str(tmp_path)}
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), **other)
    command = [sys.executable, "-P", "-c", OTHER, str(tmp_path / "given.npz"), str(tmp_path / "made.npz")]
    subprocess.run(command, env=environment, check=True)
    for tb in (False, True):
        KERNELS["gemm_rows"](a, bt if tb else b, expected := c.copy(), tb, True)
        assert np.load(tmp_path / "made.npz")[str(tb)].tobytes() == expected.tobytes()


def test_workers_without_python_call_the_kernel_by_its_address():
    for verb, shapes, flags in (
        ("gemm_rows", [(9, 6), (6, 5), (4, 5)], (False, True)),
        ("gemm_rows_bias", [(9, 6), (5, 6), (5,), (4, 5)], (True, True)),
        ("gemm_rows_onto", [(9, 6), (6, 5), (4, 5), (4, 5)], (False,)),
        ("gemm_rows_bias_onto", [(9, 6), (6, 5), (5,), (4, 5), (4, 5)], (False,)),
    ):
        prepare(verb)
        block = layout(KERNELS[verb], [(shape, np.float32) for shape in shapes], flags, False)
        assert block is not None and block.address
