"""The header of a safetensors file: which tensor lies at which bytes.

Covers laying tensors out, writing the header, and checking a header that was read against the size of its file before anything
trusts it. It reads no tensor data: `tensors.py` does. Format: 8 bytes of little-endian header length, that many bytes of JSON
padded with spaces so that the data begins at a multiple of 8, then the data of all tensors without gaps.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from asynctile.storage.errors import CheckpointError
from asynctile.storage.input import parse_json, shown

__all__ = ["FLOATS", "HEADER_NBYTES", "TensorEntry", "float_code", "lay_out", "read_header"]

#: the dtypes whose values can be read, by their name in the file; numpy has no bfloat16, so its bits are read as uint16
FLOATS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
#: bytes per element of the other dtypes, needed to check a file that contains them (masks, counters)
_OTHER_NBYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "U32": 4,
    "I32": 4,
    "U64": 8,
    "I64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}
#: names that a dtype newer than this program may have
_DTYPE = re.compile("[A-Za-z0-9_]{1,32}")
_METADATA = "__metadata__"
#: The longest header that is read. A tensor takes about 130 bytes of header, the metadata some hundred, so this is enough for
#: 60,000 tensors. A longer header means a damaged file, not a reason to allocate (decoding takes up to 40 times as much memory,
#: see input.py).
HEADER_NBYTES = 8 << 20
#: The longest header for a known number of tensors: bytes per tensor, four times the usual, plus room for metadata.
ENTRY_NBYTES, SPARE_NBYTES = 512, 1 << 20
#: The most dimensions of a tensor; numpy's own limit is 32 or 64, and a model needs 4.
_MAX_DIMS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """One tensor of a safetensors file."""

    name: str
    #: as the file spells the dtype: "F32", "BF16", ...
    dtype: str
    shape: tuple[int, ...]
    #: byte of the file at which its data begins
    offset: int
    nbytes: int


def float_code(dtype: DTypeLike) -> str:
    """Return the file's name for a dtype that can be written: float64, float32, float16, or uint16 for bits of bfloat16.

    ValueError for others.
    """
    wanted = np.dtype(dtype)
    if wanted not in FLOATS.values():
        raise ValueError(
            f"dtype {wanted} cannot be written to a safetensors file; expected float32, float16, float64, or uint16 for the "
            "bits of bfloat16"
        )
    return next(code for code, known in FLOATS.items() if known == wanted)


def lay_out(
    tensors: Mapping[str, tuple[DTypeLike, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, list[TensorEntry]]:
    """Lay out tensors {name: (dtype, shape)} in a new file; return its first bytes, and the entries by offset.

    Tensors of wider elements come first, then names in order, as in the safetensors library, so every element is aligned.
    Raises ValueError for tensors whose header `read_header` would refuse.
    """
    if _METADATA in tensors:
        raise ValueError(f"tensor name {_METADATA!r} is reserved by the safetensors format; choose another")
    codes = {name: float_code(dtype) for name, (dtype, _) in tensors.items()}
    begin, placed = 0, []
    for name in sorted(tensors, key=lambda name: (-FLOATS[codes[name]].itemsize, name)):
        shape = tuple(int(n) for n in tensors[name][1])
        nbytes = math.prod(shape) * FLOATS[codes[name]].itemsize
        placed.append((name, shape, begin, begin + nbytes))
        begin += nbytes
    table: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    for name, shape, start, stop in placed:
        table[name] = {"dtype": codes[name], "shape": list(shape), "data_offsets": [start, stop]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_NBYTES:
        raise ValueError(
            f"{len(tensors)} tensors need a header of {len(text)} bytes; at most {HEADER_NBYTES} can be read back, so "
            "save a model of fewer layers"
        )
    data = 8 + len(text)
    entries = [
        TensorEntry(name=name, dtype=codes[name], shape=shape, offset=data + start, nbytes=stop - start)
        for name, shape, start, stop in placed
    ]
    return len(text).to_bytes(8, "little") + text, entries


def read_header(file: BinaryIO, path: Path, most: int | None = None) -> tuple[list[TensorEntry], dict[str, str]]:
    """Read and check a header; return the tensors by offset, and the metadata.

    most: how many tensors the caller expects at most; a header far too long for them is not even read. Raises CheckpointError,
    which names the file, the bytes expected and the bytes found, unless the header is complete, every tensor has the bytes that
    its shape needs, and together the tensors fill the file exactly.
    """
    table, data, file_nbytes = _read_table(file, path, most)
    metadata = table.pop(_METADATA, {})
    if not isinstance(metadata, dict):
        raise _damaged(path, f"its {_METADATA} is a {type(metadata).__name__}, expected an object of strings")
    entries = sorted(
        (_entry(path, name, fields, data) for name, fields in table.items()),
        key=lambda e: (e.offset, e.nbytes),
    )
    end = data
    for entry in entries:
        if entry.offset != end:
            raise _damaged(
                path,
                f"tensor {shown(entry.name)} begins at byte {entry.offset}, expected {end}, where the one before it ends",
            )
        end += entry.nbytes
    if end != file_nbytes:
        fault = "is truncated" if file_nbytes < end else "is longer than its header says"
        raise CheckpointError(
            f"{path} {fault}: expected {end} bytes, found {file_nbytes}; use another checkpoint or copy it again"
        )
    return entries, {str(key): str(value) for key, value in metadata.items()}


def _read_table(file: BinaryIO, path: Path, most: int | None) -> tuple[dict[str, Any], int, int]:
    """Return the JSON of the header, the offset at which the data begins, and the size of the file."""
    file_nbytes = os.fstat(file.fileno()).st_size
    length = int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
    if file_nbytes < 8 or length > file_nbytes - 8:
        expected = "at least 8 bytes" if file_nbytes < 8 else f"a header of {length} bytes"
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file: expected {expected}, found {file_nbytes} bytes in all; "
            "use another checkpoint or copy it again"
        )
    limit = HEADER_NBYTES if most is None else min(HEADER_NBYTES, SPARE_NBYTES + most * ENTRY_NBYTES)
    if length > limit:
        what = "" if most is None else f" for a model of {most} tensors"
        raise _damaged(path, f"its header has {length} bytes, expected at most {limit}{what}")
    try:
        table = parse_json(os.pread(file.fileno(), length, 8))
    except ValueError as error:
        raise _damaged(path, f"its {length} bytes of header are not JSON ({error})") from error
    if not isinstance(table, dict):
        raise _damaged(path, f"its header is a {type(table).__name__}, expected an object of tensors")
    return table, 8 + length, file_nbytes


def _entry(path: Path, name: str, fields: Any, data: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
        sound = (
            isinstance(dtype, str)
            and _DTYPE.fullmatch(dtype)
            and isinstance(shape, list)
            and len(shape) <= _MAX_DIMS
            and all(type(n) is int and n >= 0 for n in (begin, end, *shape))
            and begin <= end
        )
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise _damaged(
            path,
            f"tensor {shown(name)} is described by {shown(fields)}, expected dtype, shape (of at most {_MAX_DIMS} "
            "dimensions) and data_offsets",
        )
    item_nbytes = FLOATS[dtype].itemsize if dtype in FLOATS else _OTHER_NBYTES.get(dtype)
    # A dtype newer than this program is accepted: its tensor may be one that nobody reads.
    if item_nbytes is not None and math.prod(shape) * item_nbytes != end - begin:
        raise _damaged(
            path,
            f"tensor {shown(name)} of {dtype} and shape {shown(tuple(shape))} needs "
            f"{shown(math.prod(shape) * item_nbytes)} bytes, found {shown(end - begin)}",
        )
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), offset=data + begin, nbytes=end - begin)


def _damaged(path: Path, fault: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {fault}; use another checkpoint or copy it again")
