"""Names and grids that launchers have in common."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array

#: Threads of a block where a kernel has no reason for another number.
BLOCK = 256
#: Bytes that a thread reads or writes at once.
VECTOR = 16


def suffix(array: Array) -> str:
    """What ends the name of a kernel for this dtype."""
    return {"f": "f32", "u": "bf16"}[array.dtype.kind]


def divide_up(count: int, by: int) -> int:
    """count / by, rounded up."""
    return -(-count // by)


def blocks_of_vectors(array: Array) -> int:
    """Blocks in which each thread handles 16 bytes of an array."""
    return divide_up(array.nbytes, VECTOR * BLOCK)
