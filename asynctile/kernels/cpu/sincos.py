"""float32 sine and cosine in straight-line arithmetic, which LLVM turns into vector instructions inside the calling loops.

Computed in float64, so that neither the reduction of a large angle nor a result near zero loses digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from asynctile.kernels.cpu.jit import inline, intrinsic

TWO_OVER_PI = 2.0 / np.pi
#: Adding it rounds to an integer, which then sits in the low bits of the sum.
ROUND = 6755399441055744.0
#: pi / 2 in two parts: the product of HIGH, of 25 bits, with an integer below 2^28 is exact.
HIGH, LOW = 1.57079631090164184570, 1.58932547735281966916e-8
#: Minimax polynomials of sine and cosine on [-pi / 4, pi / 4], to 2^-37 (FreeBSD's k_sinf.c and k_cosf.c).
S1, S2, S3, S4 = -0.166666666416265235595, 0.0083333293858894631756, -0.000198393348360966317347, 0.0000027183114939898219064
C0, C1, C2, C3 = -0.499999997251031003120, 0.0416666233237390631894, -0.00138867637746099294692, 0.0000243904487962774090654
ONE, TWO, NONE = np.int64(1), np.int64(2), np.int64(0)


@intrinsic
def _bits_of(typing: Any, x: Any) -> Any:
    """Return an int64 with the bits of a float64."""
    return types.int64(types.float64), lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(64))


@inline()
def sincos(angle: Any) -> Any:
    """Return (sin, cos) of a finite float32 below 4e8, each to 1 unit in the last place."""
    x = np.float64(angle)
    rounded = x * TWO_OVER_PI + ROUND
    n = rounded - ROUND
    r = x - n * HIGH - n * LOW
    z = r * r
    sine = r + r * z * (S1 + z * (S2 + z * (S3 + z * S4)))
    cosine = 1.0 + z * (C0 + z * (C1 + z * (C2 + z * C3)))
    quadrant = _bits_of(rounded)
    swapped = quadrant & ONE != NONE
    first, second = (cosine if swapped else sine), (sine if swapped else cosine)
    first = -first if quadrant & TWO != NONE else first
    second = -second if (quadrant + ONE) & TWO != NONE else second
    return np.float32(first), np.float32(second)
