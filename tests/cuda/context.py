"""A Context on the CPU: launchers run at once, on NumPy's memory, through the kernels that build.py compiled."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from asynctile.kernels.bf16 import from_bf16, to_bf16
from asynctile.kernels.cuda import SCRATCH, Array, pack
from asynctile.program.precision import BF16
from tests.cuda.build import SHARED, Library


def view(array: Array) -> np.ndarray:
    """Return the NumPy array over the memory of an Array."""
    room = (ctypes.c_char * array.nbytes).from_address(array.ptr)
    return np.frombuffer(room, array.dtype).reshape(array.shape)


def widen(values: np.ndarray) -> np.ndarray:
    """Return float32 or bf16 values as float32."""
    return from_bf16(values) if values.dtype == BF16 else values


class SoftContext:
    """A context that runs all work before it returns. GEMMs are NumPy's, in float32.

    fuses: whether GEMMs add a bias before they store. shared: bytes of shared memory that a block may have.
    """

    def __init__(self, library: Library, *, fuses: bool = False, shared: int = SHARED) -> None:
        self.library = library
        self.shared = shared
        self.fuses = fuses
        self._room = np.full(SCRATCH // 8, np.nan)
        self._count = np.zeros(1, np.uint32)
        self.arrived = Array(self._count.ctypes.data, self._count.shape, self._count.dtype)
        self.scratch = Array(self._room.ctypes.data, self._room.shape, self._room.dtype)

    def launch(self, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any, shared: int = 0) -> None:
        assert shared <= self.shared, f"{kernel} asks for {shared} bytes of shared memory and a block has {self.shared}"
        packed = pack(args)
        self.library.run(kernel, grid if isinstance(grid, tuple) else (grid,), (block,), shared, packed.address)

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        self._multiply(a, b, c, ta, tb, c if accumulate else None, None)

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        assert bias is None or bias.dtype == c.dtype, "no library adds a bias of another dtype"
        if self.fuses:
            self._multiply(a, b, c, ta, tb, source, bias)
        return self.fuses

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        return False

    def attend_backward(self, *operands_and_sizes: Any) -> bool:
        return False

    def _multiply(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> None:
        left, right, target = widen(view(a)), widen(view(b)), view(c)
        with np.errstate(invalid="ignore", over="ignore"):
            product = (left.T if ta else left) @ (right.T if tb else right)
            for added in (source, bias):
                if added is not None:
                    product = widen(view(added)) + product
        target[...] = to_bf16(product) if target.dtype == BF16 else product
