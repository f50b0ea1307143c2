"""A tile as CUDA kernels see it: an address on the device, a shape and a dtype. Owns no memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Array:
    """Row-major elements from address `ptr`, a multiple of 16. uint16 stands for bf16 bits."""

    ptr: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Number of elements, below 2^31, because kernels count them in 32 bits."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize
