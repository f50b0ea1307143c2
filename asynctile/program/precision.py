"""Precisions, and the dtypes of tiles in each. Conversion to and from bf16 is asynctile/kernels/bf16.py.

- fp32: every float tile is float32.
- tf32: the same tiles, but matrix products on the device multiply in TF32.
- bf16: matrices and activations have bf16 tiles for compute. Master weights, moments, gradients of weights, the residual stream
  and everything that is summed over a row stay float32.

Matrices that a model keeps as its file has them are bf16 tiles in every precision. Where products read float32, they read
copies that are made as they are needed.

layers/recording.py and layers/parameters.py choose the dtype of each tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: The precisions of an engine.
PRECISIONS = ("fp32", "tf32", "bf16")
#: The dtype of tiles that hold bf16: the upper 16 bits of a float32.
BF16 = np.dtype(np.uint16)
FP32 = np.dtype(np.float32)


def check_precision(name: str, device: str) -> None:
    """Raise ValueError if the precision is unknown, or the kind of device that `device` names does not compute in it."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is not known; expected 'fp32', 'tf32' or 'bf16'")
    if name != "fp32" and device.partition(":")[0] != "cuda":
        raise ValueError(f"precision {name!r} needs device='cuda:N'; cpu and emulated compute in fp32")


def compute_dtype(precision: str) -> np.dtype[Any]:
    """Return the dtype of the tiles that matrix products and attention read: BF16 or float32."""
    return BF16 if precision == "bf16" else FP32
