"""Matrix products by cuBLAS, called through ctypes.

The way not taken: CuPy's own binding. CuPy sets the stream before every call, and setting the stream drops the workspace that
the handle was given. cuBLAS may then choose another algorithm inside a captured graph than outside, with other last bits. Here
one handle keeps one stream and one workspace for its whole life, so equal operands always give equal bits.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from typing import Any

from asynctile.errors import DeviceError
from asynctile.kernels.cuda.array import Array

#: cudaDataType by bytes per element: bfloat16, float32.
DATA_TYPE = {2: 14, 4: 0}
#: cublasComputeType_t: accumulate in float32. The second multiplies float32 operands as TF32.
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
#: cublasMath_t: a product computed in parts (split-K) is reduced in float32, never in c's bf16.
DISALLOW_REDUCED_PRECISION_REDUCTION = 16
#: cublasGemmAlgo_t: let cuBLAS choose.
GEMM_DEFAULT = -1
#: The size that cuBLAS recommends for Hopper; older GPUs need less.
WORKSPACE_NBYTES = 32 << 20


class Cublas:
    """A cuBLAS handle for one stream.

    workspace: device address of WORKSPACE_NBYTES bytes, which the caller owns. tf32: multiply float32 operands as TF32.
    """

    def __init__(self, stream: int, *, tf32: bool, workspace: int) -> None:
        self.workspace = workspace
        self._library = load("cublas", "cublasGetStatusString")
        self._compute = compute_type(tf32)
        self._handle = c_void_p()
        self._check("cublasCreate", self._library.cublasCreate_v2(byref(self._handle)))
        mode = c_int(DISALLOW_REDUCED_PRECISION_REDUCTION)
        self._check("cublasSetMathMode", self._library.cublasSetMathMode(self._handle, mode))
        # The order matters: setting the stream resets the workspace.
        self._check("cublasSetStream", self._library.cublasSetStream_v2(self._handle, c_void_p(stream)))
        size = c_size_t(WORKSPACE_NBYTES)
        self._check("cublasSetWorkspace", self._library.cublasSetWorkspace_v2(self._handle, c_void_p(workspace), size))
        self._one, self._zero = c_float(1.0), c_float(0.0)

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        """Compute c (R, C) = op(a) (R, K) op(b) (K, C) (+ c), all row-major. a and b have one dtype; c has its own.

        Each of the two dtypes is float32 or bfloat16.
        """
        rows, columns = c.shape
        inner = a.shape[0] if ta else a.shape[1]
        # cuBLAS is column-major: the row-major product is its product of the transposes, with the operands swapped.
        status = self._library.cublasGemmEx(
            self._handle, c_int(tb), c_int(ta), c_int(columns), c_int(rows), c_int(inner),
            byref(self._one), c_void_p(b.ptr), c_int(DATA_TYPE[b.dtype.itemsize]), c_int(b.shape[1]),
            c_void_p(a.ptr), c_int(DATA_TYPE[a.dtype.itemsize]), c_int(a.shape[1]),
            byref(self._one if accumulate else self._zero),
            c_void_p(c.ptr), c_int(DATA_TYPE[c.dtype.itemsize]), c_int(columns),
            c_int(self._compute), c_int(GEMM_DEFAULT),
        )  # fmt: skip
        if status:
            self._check(f"cublasGemmEx of {rows} x {inner} x {columns}", status)

    def close(self) -> None:
        self._library.cublasDestroy_v2(self._handle)

    def _check(self, call: str, status: int) -> None:
        if status:
            name = self._library.cublasGetStatusString(status).decode()
            raise DeviceError(f"{call} failed: {name}; if another process fills the GPU's memory, end it and try again")


def compute_type(tf32: bool) -> int:
    """Return the cublasComputeType_t of a precision."""
    return COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F


def load(name: str, text: str) -> Any:
    """Load the library "cublas" or "cublasLt" from where CuPy finds it.

    text: the name of its function that names a status. Raises DeviceError if the library is missing.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        library = ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except Exception as error:
        raise DeviceError(
            f"{name} does not load ({str(error).splitlines()[0]}); install it with pip install 'asynctile[cuda13]'"
        ) from error
    getattr(library, text).restype = ctypes.c_char_p
    return library
