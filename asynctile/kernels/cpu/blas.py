"""The single-precision matrix product of BLAS, callable from compiled code on parts of row-major arrays.

A part is given as the array, the element where it starts, and the elements from one row to the next.

Uses the OpenBLAS that SciPy exports through `scipy.linalg.cython_blas`. Its address is registered with LLVM under a name,
because Numba can cache code on disk if the code holds a name, but not if it holds an address. This module sets no number of
threads: the engine does (one per worker). The kernel itself is in gemm.py.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import get_cython_function_address

from asynctile.kernels.cpu.jit import intrinsic

SYMBOL = "asynctile_sgemm"

# Register at import: a cached kernel is linked when it is loaded, in a process that has not compiled anything.
llvm.add_symbol(SYMBOL, get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))


@intrinsic
def sgemm(
    typing: Any, m: Any, n: Any, k: Any, alpha: Any, a: Any, a_at: Any, a_step: Any, ta: Any, b: Any, b_at: Any,
    b_step: Any, tb: Any, beta: Any, c: Any, c_at: Any, c_step: Any,
) -> Any:  # fmt: skip
    """Compute c (m, n) = alpha op(a) (m, k) op(b) (k, n) + beta c, row-major.

    Each matrix starts `_at` elements after the start of its array and has `_step` elements from row to row. ta, tb: the stored
    matrix is the transpose. With beta = 0, c is not read.
    """
    count, real, flag = types.int64, types.float32, types.boolean
    left, right, result = (a, count, count, flag), (b, count, count, flag), (c, count, count)
    return types.void(count, count, count, real, *left, *right, real, *result), _emit


def _emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    m, n, k, alpha, a, a_at, a_step, ta, b, b_at, b_step, tb, beta, c, c_at, c_step = args
    kinds = {"a": signature.args[4], "b": signature.args[8], "c": signature.args[13]}
    char, integer, real = ir.IntType(8), ir.IntType(32), ir.FloatType()

    def on_stack(value: Any) -> Any:
        place = cgutils.alloca_once(builder, value.type)  # in the entry block: a loop does not grow the stack
        builder.store(value, place)
        return place

    def start(name: str, array: Any, offset: Any) -> Any:
        return builder.gep(context.make_array(kinds[name])(context, builder, array).data, [offset])

    def order(transposed: Any) -> Any:
        flag = builder.trunc(transposed, ir.IntType(1)) if transposed.type.width > 1 else transposed
        return on_stack(builder.select(flag, char(ord("T")), char(ord("N"))))

    def size(value: Any) -> Any:
        return on_stack(builder.trunc(value, integer))

    pointer = real.as_pointer()
    letters, sizes = char.as_pointer(), integer.as_pointer()
    kind = ir.FunctionType(
        ir.VoidType(),
        [letters, letters, sizes, sizes, sizes, pointer, pointer, sizes, pointer, sizes, pointer, pointer, sizes],
    )
    function = cgutils.get_or_insert_function(builder.module, kind, SYMBOL)
    # BLAS is column-major: it computes the transpose of c, which is the product of the operands swapped.
    builder.call(function, [
        order(tb), order(ta), size(n), size(m), size(k), on_stack(alpha), start("b", b, b_at), size(b_step),
        start("a", a, a_at), size(a_step), on_stack(beta), start("c", c, c_at), size(c_step),
    ])  # fmt: skip
    return context.get_dummy_value()
