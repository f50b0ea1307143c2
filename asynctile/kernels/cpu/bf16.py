"""Conversion between float32 and bf16 bits in straight-line integer arithmetic, which vectorizes inside the calling loops."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from asynctile.kernels.cpu.jit import intrinsic


@intrinsic
def bf16_of(typing: Any, x: Any) -> Any:
    """Return a uint16 with the bits of a float32 rounded to bf16, ties to even. NaN stays NaN."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.bitcast(args[0], word)
        upper = builder.lshr(bits, word(16))
        half = builder.add(word(0x7FFF), builder.and_(upper, word(1)))
        rounded = builder.lshr(builder.add(bits, half), word(16))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(is_nan, builder.or_(upper, word(0x0040)), rounded), ir.IntType(16))

    return types.uint16(types.float32), emit


@intrinsic
def float_of(typing: Any, x: Any) -> Any:
    """Return the float32 that an element of a tile stands for: a float32 itself, or the value of a uint16's bf16 bits."""

    def widened(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(args[0], word), word(16)), ir.FloatType())

    def same(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0]

    return types.float32(x), widened if x == types.uint16 else same
