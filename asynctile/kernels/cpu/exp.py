"""float32 exp in straight-line arithmetic, which LLVM turns into vector instructions inside the calling loops.

Covers exp and the order-preserving integer keys that let a row maximum vectorize. It contains no loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from asynctile.kernels.cpu.jit import FUSE, inline, intrinsic

#: Below LOW exp returns 0 (the float32 would be subnormal), above HIGH infinity.
LOW, HIGH = np.float32(-87.33654), np.float32(88.72283)
LOG2E = np.float32(1.44269504)
#: Adding it rounds to an integer, which then sits in the low bits of the sum.
ROUND = np.float32(12582912.0)
#: ln 2 in two parts: the product of LN2_HIGH with an exponent is exact.
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
#: Minimax polynomial of exp on [-ln 2 / 2, ln 2 / 2] (Cephes).
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
ONE, ZERO, INFINITY = np.float32(1.0), np.float32(0.0), np.float32(np.inf)
SIGN_AT, MAGNITUDE = np.int32(31), np.int32(0x7FFFFFFF)


@intrinsic
def float_of(typing: Any, x: Any) -> Any:
    """Return a float32 with the bits of an int32."""
    return types.float32(types.int32), lambda context, builder, sig, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def _scale(typing: Any, p: Any, rounded: Any) -> Any:
    """Return p 2^n, where n is in the low bits of `rounded`, by one shift and one integer addition. p and result are normal."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        power = builder.shl(builder.bitcast(args[1], word), word(23))
        return builder.bitcast(builder.add(builder.bitcast(args[0], word), power), ir.FloatType())

    return types.float32(types.float32, types.float32), emit


@inline(FUSE)
def exp(x: Any) -> Any:
    """Return exp(x) to 2 units in the last place: 0 where it would be subnormal, NaN for NaN."""
    t = x if x > LOW else LOW
    t = t if t < HIGH else HIGH
    rounded = t * LOG2E + ROUND
    n = rounded - ROUND
    r = t - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = P0 * r + P1
    p = p * r + P2
    p = p * r + P3
    p = p * r + P4
    p = p * r + P5
    p = p * (r * r) + r + ONE
    y = _scale(p, rounded)
    y = y if x <= HIGH else x * INFINITY  # also NaN
    return y if not x < LOW else ZERO


@intrinsic
def key(typing: Any, x: Any) -> Any:
    """Return an int32 that orders as the float32 does.

    An integer maximum vectorizes without the promise that there is no NaN.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.bitcast(args[0], word)
        flip = builder.lshr(builder.ashr(bits, word(31)), word(1))
        return builder.xor(bits, flip)

    return types.int32(types.float32), emit


@inline()
def unkey(value: int) -> Any:
    """Return the float32 of a key."""
    return float_of(np.int32(value ^ ((value >> SIGN_AT) & MAGNITUDE)))
