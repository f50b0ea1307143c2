"""The interface that launchers need of a device, and the layout of kernel arguments for cuLaunchKernel.

A device implements Context with a driver and a stream; tests implement it with the sources compiled for the CPU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ctypes import addressof, create_string_buffer
from typing import Protocol

import numpy as np

from asynctile.kernels.cuda.array import Array

#: Bytes of a context's scratch.
SCRATCH = 4 << 20


class Context(Protocol):
    """One stream of a device. Launches on it run in the order of the calls.

    scratch: SCRATCH bytes of float64, through which a kernel passes results to the next kernel of the same operation, or its
    blocks to the last block. arrived: 4 bytes in which a kernel counts its finished blocks, 0 before and after each kernel.
    shared: the most bytes of shared memory that a block may have.
    """

    scratch: Array
    arrived: Array
    shared: int

    def launch(
        self, kernel: str, grid: int | tuple[int, ...], block: int, *args: Array | bool | int | float, shared: int = 0
    ) -> None:
        """Run `kernel` of source() in `grid` blocks of `block` threads. shared: bytes of dynamic shared memory."""

    def gemm(self, a: Array, b: Array, c: Array, ta: bool, tb: bool, accumulate: bool) -> None:
        """Compute c (R, C) = op(a) (R, K) op(b) (K, C), plus c if `accumulate`.

        a and b are both float32 or both bf16; c is either. Sums are float32.
        """

    def gemm_onto(
        self, a: Array, b: Array, c: Array, ta: bool, tb: bool, source: Array | None, bias: Array | None
    ) -> bool:
        """Compute c = op(a) op(b), plus source (like c, or c itself), plus bias (C,) of c's dtype, in one pass over c.

        Returns False, with nothing done, if no library supports it. That depends on shapes and dtypes only.
        """

    def attend(self, q: Array, k: Array, v: Array, out: Array, stats: Array, seqs: int, heads: int) -> bool:
        """Compute causal attention within `seqs` whole sequences, and its log-sum-exp in rows 0 .. g - 1 of stats.

        Returns False, with nothing done, if no library supports it. That depends on shapes and dtypes only.
        """

    def attend_backward(
        self, q: Array, k: Array, v: Array, out: Array, dout: Array, stats: Array, dq: Array, dk: Array, dv: Array,
        seqs: int, heads: int,
    ) -> bool:  # fmt: skip
        """Compute the gradients of `attend` from its results. Returns False under the same conditions."""


class Packed:
    """Arguments in memory, valid as long as this object lives. address: of an array with one pointer per argument."""

    __slots__ = ("address", "buffer")

    def __init__(self, layout: str, values: list[int | float]) -> None:
        count = len(values)
        self.buffer = create_string_buffer(16 * count or 1)
        self.address = addressof(self.buffer)
        first = self.address + 8 * count
        pointers = range(first, first + 8 * count, 8)
        struct.pack_into(f"={count}Q{layout}", self.buffer, 0, *pointers, *values)


def pack(args: Iterable[Array | bool | int | float]) -> Packed:
    """Pack kernel arguments: an Array as its pointer, a bool or int as int32, a numpy.float64 as such, a float as float32.

    Raises struct.error for an int beyond 32 bits, TypeError for an argument of another type.
    """
    layout = ""
    values: list[int | float] = []
    for arg in args:
        if isinstance(arg, Array):
            layout += "Q"
            values.append(arg.ptr)
        elif isinstance(arg, int):
            layout += "i4x"
            values.append(arg)
        elif isinstance(arg, np.float64):  # which is a float, too
            layout += "d"
            values.append(arg)
        elif isinstance(arg, float):
            layout += "f4x"
            values.append(arg)
        else:
            raise TypeError(f"a kernel takes arrays, bools, ints and floats, not {arg!r}")
    return Packed(layout, values)
