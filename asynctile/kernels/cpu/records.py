"""Records by address, for compiled code that walks many tables.

A function that takes an address compiles ten times as fast as one that takes arrays. Nothing checks addresses or indices, and
the caller must keep the memory alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from asynctile.kernels.cpu.jit import intrinsic


@intrinsic
def record_at(typing: Any, address: Any, number: Any, dtype: Any) -> Any:
    """Return record `number` of the table at `address`. dtype: the NumPy type of the records, known at compile time."""

    def found(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, index, _ = arguments
        size = ir.Constant(start.type, signature.return_type.size)
        place = builder.add(start, builder.mul(builder.sext(index, start.type) if index.type != start.type else index, size))
        return builder.inttoptr(place, context.get_value_type(signature.return_type))

    return dtype.dtype(types.int64, types.int64, dtype), found
