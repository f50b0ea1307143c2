"""The calls that cuBLAS and cuBLASLt get, by a library that records them. Only a GPU gives answers (probe.py, tests/gpu)."""

from ctypes import c_char_p

import numpy as np
import pytest

from asynctile.device import cublas, cublas_lt
from asynctile.kernels.cuda import Array
from asynctile.program.precision import BF16

FP32 = np.dtype(np.float32)
#: From the headers: cudaDataType of float32 and bf16; the attribute for the type of an epilogue's bias; the preference for
#: reductions.
CUDA_R_32F, CUDA_R_16BF = 0, 14
BIAS_DATA_TYPE, REDUCTION_SCHEME_MASK = 26, 3


class Library:
    """A library that records its calls.

    calls: (name, values of plain arguments and of arguments behind a pointer). without: it has no algorithm for anything.
    """

    def __init__(self, *, without=False):
        self.calls, self.without = [], without

    def __getattr__(self, name):
        def call(*args):
            places = [getattr(arg, "_obj", arg) for arg in args]  # ctypes names it so
            if name == "cublasLtMatmulAlgoGetHeuristic":
                places[-1].value = not self.without
            self.calls.append((name, *(getattr(place, "value", place) for place in places)))
            return 0

        call.restype = c_char_p
        return call

    def told(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def library(monkeypatch):
    found = Library()
    for module in (cublas, cublas_lt):
        monkeypatch.setattr(module, "load", lambda name, text: found)
    return found


def biased(out):
    """Return the arguments of a bf16 product with a bias, whose result has type `out`."""
    a, b, c = Array(256, (32, 64), BF16), Array(512, (64, 16), BF16), Array(768, (32, 16), out)
    return a, b, c, False, False, None, Array(1024, (16,), out)


def test_no_product_is_summed_in_less_than_float32(library):
    cublas.Cublas(1, tf32=False, workspace=256)
    ((_, mode),) = library.told("cublasSetMathMode")
    assert mode == 16  # CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
    cublas_lt.CublasLt(1, tf32=False, workspace=256).gemm(*biased(BF16))
    limits = {which: value for _, which, value, _ in library.told("cublasLtMatmulPreferenceSetAttribute")}
    assert limits[REDUCTION_SCHEME_MASK] == 2  # in one piece, or CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE


@pytest.mark.parametrize(("out", "kind"), [(FP32, CUDA_R_32F), (BF16, CUDA_R_16BF)])
def test_the_bias_has_the_type_of_the_result(library, out, kind):
    assert cublas_lt.CublasLt(1, tf32=False, workspace=256).gemm(*biased(out))
    told = {which: value for _, which, value, _ in library.told("cublasLtMatmulDescSetAttribute")}
    assert told[BIAS_DATA_TYPE] == kind
    assert [call[1] for call in library.told("cublasLtMatrixLayoutCreate")] == [CUDA_R_16BF, CUDA_R_16BF, kind]


def test_a_shape_without_an_algorithm_is_asked_for_once_and_named(library):
    library.without = True
    lt = cublas_lt.CublasLt(1, tf32=False, workspace=256)
    assert not lt.gemm(*biased(BF16)) and not lt.gemm(*biased(BF16))
    assert len(library.told("cublasLtMatmulAlgoGetHeuristic")) == 1 and not library.told("cublasLtMatmul")
    assert lt.words == ("cuBLASLt, with no algorithm for 1 of 1 shapes "
                        "((32, 64) by (64, 16) of 2 bytes to 2 bytes, bias added)")  # fmt: skip
