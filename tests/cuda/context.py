"""A Context on the CPU: launchers run at once, on NumPy's memory, through the kernels that build.py compiled."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from asynctile.kernels.cuda import SCRATCH, Array, pack
from tests.cuda.build import Library


def view(array: Array) -> np.ndarray:
    """The NumPy array over the memory of an Array."""
    room = (ctypes.c_char * array.nbytes).from_address(array.ptr)
    return np.frombuffer(room, array.dtype).reshape(array.shape)


def widen(values: np.ndarray) -> np.ndarray:
    """float32 of float32, or of bf16 by its bits."""
    return (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values


def narrow(values: np.ndarray) -> np.ndarray:
    """bf16 by its bits of float32, rounded to nearest even; NaN is 0x7fff."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


class SoftContext:
    """Runs what it is given before it returns. GEMMs are NumPy's, in float32."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._room = np.full(SCRATCH // 8, np.nan)
        self.scratch = Array(self._room.ctypes.data, self._room.shape, self._room.dtype)

    def launch(self, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any, shared: int = 0) -> None:
        packed = pack(args)
        self.library.run(kernel, grid if isinstance(grid, tuple) else (grid,), (block,), shared, packed.address)

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        left, right, target = widen(view(a)), widen(view(b)), view(c)
        with np.errstate(invalid="ignore", over="ignore"):
            product = (left.T if ta else left) @ (right.T if tb else right)
            if accumulate:
                product = widen(target) + product
        target[...] = narrow(product) if target.dtype == np.uint16 else product
