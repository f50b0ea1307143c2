"""Matrix products by cuBLASLt that add a bias row or another matrix in the same pass.

Called through ctypes, like cublas.py. The algorithm depends on the shape alone, never on an address, so equal operands give
equal bits at any address. Some combinations of types have no algorithm: `gemm` then returns False, and the caller computes
product and addition separately. When a device opens, probe.py checks once that the results are right on this machine.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from asynctile.device.cublas import DATA_TYPE, WORKSPACE_NBYTES, compute_type, load
from asynctile.kernels.cuda.array import Array
from asynctile.program.grain import COARSE

#: cublasLtMatmulDescAttributes_t.
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, BIAS_DATA_TYPE = 3, 4, 7, 8, 26
#: cublasLtEpilogue_t: add nothing, or add a row.
EPILOGUE_DEFAULT, EPILOGUE_BIAS = 1, 4
#: cublasLtMatmulPreferenceAttributes_t. MIN_ALIGNMENTS say of which number every address is a multiple.
MAX_WORKSPACE, REDUCTION_SCHEMES, MIN_ALIGNMENTS = 1, 3, (5, 6, 7, 8)
#: cublasLtReductionScheme_t: a product computed in parts (split-K) is reduced in float32, never in c's bf16.
IN_COMPUTE_TYPE = 2
FLOAT32 = 0
ALIGNMENT = COARSE.alignment


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4),
    ]  # fmt: skip


@dataclass(slots=True)
class GemmPlan:
    """Descriptors and the algorithm for one shape."""

    operation: c_void_p
    layouts: tuple[c_void_p, c_void_p, c_void_p]
    found: _Heuristic


class CublasLt:
    """A cuBLASLt handle for one stream. stream, tf32, workspace: as for Cublas.

    Both may share one workspace, because their work is on one stream.
    """

    def __init__(self, stream: int, *, tf32: bool, workspace: int) -> None:
        self._library = load("cublasLt", "cublasLtGetStatusString")
        self._stream = c_void_p(stream)
        self._compute = compute_type(tf32)
        self._workspace = c_void_p(workspace)
        self._handle = c_void_p()
        self._plans: dict[tuple[Any, ...], GemmPlan | None] = {}
        self._one, self._zero = c_float(1.0), c_float(0.0)
        self._call("cublasLtCreate", byref(self._handle))

    def gemm(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None = None, bias: Array | None = None
    ) -> bool:
        """Compute c = op(a) op(b) (+ source) (+ bias), all row-major. Return False, with nothing done, if no algorithm exists.

        source: has c's shape and dtype, and may be c itself. bias: (C,) of c's dtype, the only dtype with an algorithm.
        """
        key = (a.shape, b.shape, c.shape, a.dtype.itemsize, c.dtype.itemsize, ta, tb, source is not None, bias is not None)
        if key not in self._plans:
            self._plans[key] = self._plan(a, b, c, ta, tb, bias is not None)
        plan = self._plans[key]
        if plan is None:
            return False
        if bias is not None:
            self._set(plan.operation, BIAS_POINTER, c_uint64(bias.ptr))
        left, right, out = plan.layouts
        beta = self._zero if source is None else self._one
        added = c.ptr if source is None else source.ptr
        # cuBLASLt is column-major: the row-major product is its product of the transposes, with the operands swapped.
        self._call(
            "cublasLtMatmul", self._handle, plan.operation, byref(self._one), c_void_p(b.ptr), left, c_void_p(a.ptr), right,
            byref(beta), c_void_p(added), out, c_void_p(c.ptr), out, byref(plan.found), self._workspace,
            c_size_t(plan.found.workspace), self._stream,
        )  # fmt: skip
        return True

    @property
    def words(self) -> str:
        """The library's name, the number of requested shapes without an algorithm so far, and the last of them."""
        without = [key for key, plan in self._plans.items() if plan is None]
        if not without:
            return "cuBLASLt"
        a, b, _, item, out, ta, tb, source, bias = without[-1]
        added = " and ".join(name for name, there in (("source", source), ("bias", bias)) if there)
        return (f"cuBLASLt, with no algorithm for {len(without)} of {len(self._plans)} shapes ({a}{'T' if ta else ''} by "
                f"{b}{'T' if tb else ''} of {item} bytes to {out} bytes, {added or 'nothing'} added)")

    def close(self) -> None:
        for plan in self._plans.values():
            if plan is not None:
                self._destroy(plan)
        self._library.cublasLtDestroy(self._handle)

    def _plan(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, biased: bool) -> GemmPlan | None:
        """Return the algorithm that cuBLASLt ranks first for this shape, or None if it has none."""
        operation = c_void_p()
        self._call("cublasLtMatmulDescCreate", byref(operation), c_int(self._compute), c_int(FLOAT32))
        self._set(operation, TRANSA, c_int(tb))
        self._set(operation, TRANSB, c_int(ta))
        self._set(operation, EPILOGUE, c_uint32(EPILOGUE_BIAS if biased else EPILOGUE_DEFAULT))
        if biased:
            self._set(operation, BIAS_DATA_TYPE, c_int(DATA_TYPE[c.dtype.itemsize]))
            self._set(operation, BIAS_POINTER, c_uint64(ALIGNMENT))  # stands for any aligned address; nothing is read from it
        layouts = self._layout(b), self._layout(a), self._layout(c)
        found, count = _Heuristic(), c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, operation, *layouts, layouts[2], self._preference(), c_int(1), byref(found), byref(count)
        )
        plan = GemmPlan(operation, layouts, found)
        if status or not count.value or found.state:
            self._destroy(plan)
            return None
        return plan

    def _layout(self, array: Array) -> c_void_p:
        layout, kind = c_void_p(), c_int(DATA_TYPE[array.dtype.itemsize])
        rows, columns = array.shape
        call = ("cublasLtMatrixLayoutCreate", byref(layout), kind, c_uint64(columns), c_uint64(rows), c_int64(columns))
        self._call(*call)
        return layout

    def _preference(self) -> c_void_p:
        """Return the search preferences, made on first use: workspace size, reduction in float32, alignment of addresses."""
        if not hasattr(self, "_preferred"):
            self._preferred = c_void_p()
            self._call("cublasLtMatmulPreferenceCreate", byref(self._preferred))
            limits = [(MAX_WORKSPACE, c_uint64(WORKSPACE_NBYTES)), (REDUCTION_SCHEMES, c_uint32(IN_COMPUTE_TYPE)),
                      *((which, c_uint32(ALIGNMENT)) for which in MIN_ALIGNMENTS)]  # fmt: skip
            for which, value in limits:
                size = c_size_t(ctypes.sizeof(value))
                self._call("cublasLtMatmulPreferenceSetAttribute", self._preferred, c_int(which), byref(value), size)
        return self._preferred

    def _set(self, operation: c_void_p, which: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        self._call("cublasLtMatmulDescSetAttribute", operation, c_int(which), byref(value), size)

    def _destroy(self, plan: GemmPlan) -> None:
        self._library.cublasLtMatmulDescDestroy(plan.operation)
        for layout in plan.layouts:
            self._library.cublasLtMatrixLayoutDestroy(layout)

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise RuntimeError(f"{name} failed: {self._library.cublasLtGetStatusString(status).decode()}")
