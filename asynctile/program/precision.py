"""What a precision means, and bf16 in NumPy, which has no such type: its bits in uint16.

fp32: every float tile is float32. tf32: the same tiles, and GEMMs on the device multiply in TF32. bf16: matrices and
activations are computed with in bf16; master weights, moments, gradients of weights, the residual stream and whatever is
summed over a row stay float32. Which tile is which is said by layers/recording.py and layers/parameters.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What an engine may compute with.
PRECISIONS = ("fp32", "tf32", "bf16")
#: The dtype of tiles that hold bf16: the upper 16 bits of a float32.
BF16 = np.dtype(np.uint16)
FP32 = np.dtype(np.float32)
#: Converted at a time, so that what is in between stays in a cache.
_PIECE = 1 << 15
_QUIET = np.uint32(0x0040)


def check_precision(name: str, device: str) -> None:
    """ValueError if there is no such precision, or the device called `device` is of a kind that does not compute in it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is not known: expected 'fp32', 'tf32' or 'bf16'")
    if name != "fp32" and device.partition(":")[0] != "cuda":
        raise ValueError(f"precision {name!r} needs device='cuda:N'; cpu and emulated compute in fp32")


def compute_dtype(precision: str) -> np.dtype[Any]:
    """Of the tiles that GEMMs and attention read: BF16 or float32."""
    return BF16 if precision == "bf16" else FP32


def to_bf16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """Bits of `array`, taken as float32, rounded to the nearest bf16 and to even between two; NaN stays NaN."""
    wide = np.asarray(array, np.float32, order="C")
    narrow = np.empty(wide.shape, BF16)
    values, bits, target = wide.reshape(-1), wide.view(np.uint32).reshape(-1), narrow.reshape(-1)
    for start in range(0, wide.size, _PIECE):
        part = slice(start, start + _PIECE)
        upper = bits[part] >> 16
        rounded = bits[part] + (upper & 1)
        rounded += 0x7FFF
        rounded >>= 16
        # Rounding could carry a NaN's bits into infinity, or cut off those that make it one.
        np.copyto(rounded, upper | _QUIET, where=np.isnan(values[part]))
        target[part] = rounded
    return narrow


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bf16 bits, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
