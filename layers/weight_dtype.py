"""The dtypes that a model's weights can be saved in or kept in, and rounding to them.

weight_files.py writes the files. Which dtypes can be read is in asynctile/storage/header.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.program.precision import BF16, FP32
from asynctile.storage.input import shown

FLOAT32, STORED = "float32", "stored"
#: By the name in config.json, which is PyTorch's: the dtype in the file. bfloat16 is stored as its bits.
DTYPES: dict[str, np.dtype[Any]] = {FLOAT32: FP32, "float16": np.dtype(np.float16), "bfloat16": BF16}
#: The same names by the dtype of a file (asynctile/storage/header.py). float64 is wider than anything that is saved.
NAMES = {"F64": FLOAT32, "F32": FLOAT32, "F16": "float16", "BF16": "bfloat16"}
#: How the weights of a loaded model can be kept: all in float32, or matrices in bf16 where the file has them so.
KEPT = FLOAT32, STORED
#: The largest number of each dtype that is narrower than float32.
LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}


def check_dtype(dtype: object) -> str:
    """Return the name of a dtype that weights can be saved in; ValueError for anything else."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"dtype is {shown(dtype)}, expected one of {', '.join(map(repr, DTYPES))}")
    return dtype


def check_kept(weights: object) -> str:
    """Return a way to keep the weights of a loaded model; ValueError for anything else."""
    if not isinstance(weights, str) or weights not in KEPT:
        raise ValueError(f"weights is {shown(weights)}, expected one of {', '.join(map(repr, KEPT))}")
    return weights


def rounded(piece: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    """Return values of tensor `name` rounded to `dtype`, to nearest, ties to even. NaN and infinity stay what they are.

    piece: float32, or bf16 as its bits, which bfloat16 keeps. ValueError for a finite value that the dtype does not reach.
    """
    if piece.dtype == DTYPES[dtype]:
        return piece
    if piece.dtype == BF16:
        piece = from_bf16(piece)
    if dtype == FLOAT32:
        return piece
    if dtype == "bfloat16":
        narrow: NDArray[Any] = to_bf16(piece)
        is_infinite = (narrow & 0x7FFF) == 0x7F80
    else:
        with np.errstate(over="ignore"):
            narrow = piece.astype(DTYPES[dtype])
        is_infinite = np.isinf(narrow)
    beyond = piece[is_infinite & np.isfinite(piece)]
    if beyond.size:
        raise ValueError(f"tensor {name} holds {beyond[0]:g}, and {dtype} reaches {LARGEST[dtype]:g}; save the model in float32"
                         f"{' or bfloat16' if dtype == 'float16' else ''}")
    return narrow
