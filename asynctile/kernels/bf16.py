"""bf16 in NumPy, which has no such type: uint16 arrays of its bits.

asynctile/program/precision.py says what is computed in bf16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.program.precision import BF16

#: Elements converted at a time, so that intermediate arrays stay in a cache.
_PIECE = 1 << 15
_QUIET = np.uint32(0x0040)


def to_bf16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the bits of `array`, taken as float32 and rounded to the nearest bf16, ties to even. NaN stays NaN."""
    wide = np.asarray(array, np.float32, order="C")
    narrow = np.empty(wide.shape, BF16)
    values, bits, target = wide.reshape(-1), wide.view(np.uint32).reshape(-1), narrow.reshape(-1)
    for start in range(0, wide.size, _PIECE):
        part = slice(start, start + _PIECE)
        upper = bits[part] >> 16
        rounded = bits[part] + (upper & 1)
        rounded += 0x7FFF
        rounded >>= 16
        # Rounding could carry a NaN's bits into infinity, or cut off the bits that make it a NaN.
        np.copyto(rounded, upper | _QUIET, where=np.isnan(values[part]))
        target[part] = rounded
    return narrow


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the exact float32 values of bf16 bits."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
