"""A rectangular piece of a tensor in a file: where its bytes lie, and moving them.

Covers pieces of 0-D, 1-D and 2-D tensors. Which tensor lies where is `header.py`; the files are `tensors.py`.

Bytes move by pread and pwrite, a run at a time, and not through a memory map: mapped pages count in the
resident set until someone drops them, and a full disk or a file that shrinks is an error here, but a SIGBUS
there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.storage.errors import CheckpointError
from asynctile.storage.header import FLOATS, TensorEntry

__all__ = ["Index", "Rectangle", "find_piece", "read_all", "write_all"]

#: one slice of step 1 a dimension; dimensions that are left out are whole
Index = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle of a tensor as `count` runs of `run` bytes, the first at byte `offset` of the file,
    `stride` bytes apart.
    """

    shape: tuple[int, ...]
    offset: int
    run: int
    count: int
    stride: int

    def runs(self, buffer: NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
        """Pairs of a byte of the file and the bytes of `buffer`, contiguous and of this shape, that belong
        there.
        """
        if self.run * self.count:
            flat = buffer.reshape(-1).view(np.uint8).data
            for n in range(self.count):
                yield self.offset + n * self.stride, flat[n * self.run : (n + 1) * self.run]


def find_piece(entry: TensorEntry, index: Index) -> Rectangle:
    """Where the rectangle `index` (clipped, like numpy's) of a tensor lies; ValueError if it does not fit."""
    shape, item_nbytes = entry.shape, FLOATS[entry.dtype].itemsize
    if len(shape) > 2:
        raise ValueError(
            f"tensor {entry.name} has shape {shape}; only tensors of up to 2 dimensions are moved in pieces"
        )
    if len(index) > len(shape) or not all(
        isinstance(part, slice) and part.step in (None, 1) for part in index
    ):
        raise ValueError(
            f"index {index!r} does not fit tensor {entry.name} of shape {shape}; give one slice of step 1 a dimension"
        )
    whole = [*index, *[slice(None)] * (len(shape) - len(index))]
    bounds = [part.indices(n)[:2] for part, n in zip(whole, shape, strict=True)]
    sizes = tuple(max(0, stop - start) for start, stop in bounds)
    # Seen as a matrix, a vector is one row and a scalar one element of it.
    width = shape[-1] if shape else 1
    column, columns = (bounds[-1][0], sizes[-1]) if shape else (0, 1)
    row, rows = (bounds[0][0], sizes[0]) if len(shape) == 2 else (0, 1)
    offset = entry.offset + (row * width + column) * item_nbytes
    if columns == width:  # whole rows follow each other in the file
        return Rectangle(sizes, offset, rows * width * item_nbytes, 1, 0)
    return Rectangle(sizes, offset, columns * item_nbytes, rows, width * item_nbytes)


def write_all(fd: int, view: memoryview, offset: int) -> None:
    """Write bytes at `offset` of an open file. Raises OSError."""
    while view:  # one call writes at most 2 GiB, and may be cut short by a signal
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def read_all(fd: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill `view` from `offset` of an open file. Raises OSError, or CheckpointError where the file ends."""
    while view:
        done = os.preadv(fd, [view], offset)
        if done == 0:
            raise CheckpointError(
                f"{path} shrank while open: expected {offset + len(view)} bytes or more, found {os.fstat(fd).st_size}"
            )
        view, offset = view[done:], offset + done
