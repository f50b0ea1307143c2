"""Names and grids that the launchers share. Grids depend on shapes alone, and so do the orders of all sums."""

from __future__ import annotations

from asynctile.kernels.cuda.array import Array
from asynctile.kernels.cuda.context import Context

WARP = 32
#: Threads of a block, unless a kernel needs another number.
BLOCK = 256
WARPS = BLOCK // WARP
#: Bytes that a thread reads or writes at once.
VECTOR = 16
#: Rows of a patch, as in rows.cuh.
PATCH_ROWS = 32
#: Enough blocks for every GPU of today: 4 for each multiprocessor of an H200.
MANY = 528
#: The fewest rows that a block sums. Below that, a second block would cost more than it saves.
LEAST_ROWS = 64


def suffix(array: Array) -> str:
    """Return the suffix of kernel names for this dtype."""
    return {"f": "f32", "u": "bf16"}[array.dtype.kind]


def lanes(array: Array) -> int:
    """Return the number of elements in 16 bytes: N of the kernels in rows.cuh."""
    return VECTOR // array.dtype.itemsize


def divide_up(count: int, by: int) -> int:
    """Return count / by, rounded up."""
    return -(-count // by)


def blocks_of_vectors(array: Array) -> int:
    """Return the number of blocks in which each thread handles 16 bytes of an array."""
    return divide_up(array.nbytes, VECTOR * BLOCK)


def spans(columns: int, n: int) -> int:
    """Return the number of spans of a row, in which each lane has n elements."""
    return divide_up(columns, WARP * n)


def patches(rows: int, columns: int, n: int) -> int:
    """Return the number of blocks for own_patch<n> in rows.cuh."""
    return spans(columns, n) * divide_up(rows, PATCH_ROWS)


def chunks_of_rows(on: Context, rows: int, width: int, sums: int, least: int = LEAST_ROWS) -> int:
    """Return the number of chunks into which sum_chunk of rows.cuh cuts rows of `width` spans.

    Each chunk leaves `sums` doubles in the scratch. least: the fewest rows of a chunk. Raises ValueError if not even one chunk
    fits.
    """
    room = on.scratch.size // sums
    if not room:
        raise ValueError(f"{sums} sums of columns do not fit in a scratch of {on.scratch.size}; take a smaller tile")
    return min(divide_up(MANY, width), divide_up(rows, least), room)
