"""What a precision means, and the types of its tiles; to and from bf16 is asynctile/kernels/bf16.py.

fp32: every float tile is float32. tf32: the same tiles, and GEMMs on the device multiply in TF32. bf16: matrices and
activations are computed with in bf16; master weights, moments, gradients of weights, the residual stream and whatever is
summed over a row stay float32. Which tile is which is said by layers/recording.py and layers/parameters.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: What an engine may compute with.
PRECISIONS = ("fp32", "tf32", "bf16")
#: The dtype of tiles that hold bf16: the upper 16 bits of a float32.
BF16 = np.dtype(np.uint16)
FP32 = np.dtype(np.float32)


def check_precision(name: str, device: str) -> None:
    """ValueError if there is no such precision, or the device called `device` is of a kind that does not compute in it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is not known: expected 'fp32', 'tf32' or 'bf16'")
    if name != "fp32" and device.partition(":")[0] != "cuda":
        raise ValueError(f"precision {name!r} needs device='cuda:N'; cpu and emulated compute in fp32")


def compute_dtype(precision: str) -> np.dtype[Any]:
    """Of the tiles that GEMMs and attention read: BF16 or float32."""
    return BF16 if precision == "bf16" else FP32
