"""A rectangular piece of a tensor in a file: where its bytes lie, and moving them.

Covers pieces of 0-D, 1-D and 2-D tensors. header.py says which tensor lies where, tensors.py has the files.

Bytes move by pread and pwrite, one run at a time. The way not taken: a memory map. Mapped pages count in the resident set
until they are dropped. A full disk or a shrinking file would raise SIGBUS. Here they are an OSError, and a CheckpointError
from `read_all`.
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

#: one slice of step 1 per dimension; missing dimensions are taken whole
Index = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle of a tensor: `count` runs of `run` bytes, `stride` bytes apart, the first at byte `offset` of the file."""

    shape: tuple[int, ...]
    offset: int
    run: int
    count: int
    stride: int

    def runs(self, buffer: NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset in the file, bytes) for each run. buffer: a contiguous array of this shape that holds the bytes."""
        if self.run * self.count:
            flat = buffer.reshape(-1).view(np.uint8).data
            for n in range(self.count):
                yield self.offset + n * self.stride, flat[n * self.run : (n + 1) * self.run]


def find_piece(entry: TensorEntry, index: Index) -> Rectangle:
    """Return where the rectangle `index` of a tensor lies, clipped as in numpy; ValueError if the index does not fit."""
    shape, item_nbytes = entry.shape, FLOATS[entry.dtype].itemsize
    if len(shape) > 2:
        raise ValueError(
            f"tensor {entry.name} has shape {shape}; only tensors of up to 2 dimensions are moved in pieces"
        )
    if len(index) > len(shape) or not all(
        isinstance(part, slice) and part.step in (None, 1) for part in index
    ):
        raise ValueError(
            f"index {index!r} does not fit tensor {entry.name} of shape {shape}; give one slice of step 1 per dimension"
        )
    whole = [*index, *[slice(None)] * (len(shape) - len(index))]
    bounds = [part.indices(n)[:2] for part, n in zip(whole, shape, strict=True)]
    sizes = tuple(max(0, stop - start) for start, stop in bounds)
    # As a matrix, a vector is one row, and a scalar is one element.
    width = shape[-1] if shape else 1
    column, columns = (bounds[-1][0], sizes[-1]) if shape else (0, 1)
    row, rows = (bounds[0][0], sizes[0]) if len(shape) == 2 else (0, 1)
    offset = entry.offset + (row * width + column) * item_nbytes
    if columns == width:  # whole rows follow each other in the file
        return Rectangle(sizes, offset, rows * width * item_nbytes, 1, 0)
    return Rectangle(sizes, offset, columns * item_nbytes, rows, width * item_nbytes)


def write_all(fd: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset` of an open file. Raises OSError."""
    while view:  # one call writes at most 2 GiB, and a signal may cut it short
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def read_all(fd: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill `view` from `offset` of an open file. Raises OSError, or CheckpointError if the file ends too soon."""
    while view:
        done = os.preadv(fd, [view], offset)
        if done == 0:
            raise CheckpointError(
                f"{path} shrank while open: expected {offset + len(view)} bytes or more, found {os.fstat(fd).st_size}"
            )
        view, offset = view[done:], offset + done
