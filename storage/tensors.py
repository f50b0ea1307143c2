"""Tensors in safetensors files, written and read piece by piece, so that no whole tensor has to be in memory.

Covers `TensorWriter` and `TensorReader`. The layout of the file and the checks of its header are in `header.py`; where a piece
lies and how its bytes move in `piece.py`; replacing a folder as a whole in `folder.py`; which tensors a model has, in
`checkpoint.py` and the layers.

Several threads may use one writer or reader at the same time, because their files have no shared position.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import fsync, read_json
from asynctile.storage.header import FLOATS, TensorEntry, lay_out, read_header
from asynctile.storage.input import open_file, shown
from asynctile.storage.inside import part_of
from asynctile.storage.piece import Index, find_piece, read_all, write_all

__all__ = ["INDEX", "WEIGHTS", "TensorReader", "TensorWriter", "index_beside"]


def index_beside(file: str) -> str:
    """Return the name of the index that says which tensor is in which file, where several stand for `file`."""
    return file + ".index.json"


#: The file of a folder's tensors; if they are in several files, INDEX says which tensor is in which.
WEIGHTS = "model.safetensors"
INDEX = index_beside(WEIGHTS)

#: the longest file name in bytes, on every file system in use
_MAX_NAME_NBYTES = 255

#: A file is reserved, and flushed to the disk, in parts of this size.
_PART_NBYTES = 256 << 20


class TensorWriter:
    """A new safetensors file of known tensors, filled with pieces in any order.

    tensors: {name: (dtype, shape)}, each dtype one of float32, float16, float64, or uint16 for the bits of bfloat16. The space
    is reserved at once, in a file beside `path` that takes the name `path` in `close()`. An error before that removes it, and
    leaves an older `path` as it was. Raises CheckpointError if the file cannot be made or the disk has no room. tick: called
    while the space is reserved, which is slow on some file systems.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, tuple[DTypeLike, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
        tick: Callable[[], object] = bool,
    ) -> None:
        self.path = Path(path)
        header, entries = lay_out(tensors, metadata or {})
        self._entries = {entry.name: entry for entry in entries}
        self._missing = {entry.name: entry.nbytes for entry in entries}
        self._lock, self._unsynced = threading.Lock(), 0
        self._part = self.path.with_name(part_of(self.path.name))
        nbytes = len(header) + sum(entry.nbytes for entry in entries)
        try:
            self._file = open(self._part, "x+b", buffering=0)  # noqa: SIM115 - closed by close() and discard()
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self.path}: {error.strerror}; choose another folder"
            ) from error
        try:
            # Reserved, not just made long: a full disk is noticed here, before any work, not at the last piece.
            for start in range(0, nbytes, _PART_NBYTES):
                os.posix_fallocate(self._file.fileno(), start, min(_PART_NBYTES, nbytes - start))
                tick()
            write_all(self._file.fileno(), memoryview(header), 0)
        except OSError as error:
            self.discard()
            raise CheckpointError(
                f"cannot reserve {nbytes} bytes for {self.path}: {error.strerror}; "
                "free space there or choose another folder"
            ) from error

    def write(self, name: str, index: Index, array: NDArray[Any]) -> None:
        """Write `array` at `index` of tensor `name`, converted to the tensor's dtype; bfloat16 takes its bits alone, as uint16.

        index: one slice of step 1 per dimension; () is the whole tensor. Raises KeyError for an unknown name, ValueError if the
        array does not have the index's shape or holds no bits of bfloat16, CheckpointError if the disk fails.
        """
        entry = _lookup(self._entries, name, self.path)
        piece = find_piece(entry, index)
        if np.shape(array) != piece.shape:
            raise ValueError(
                f"tensor {name} got an array of shape {np.shape(array)} for a piece of shape {piece.shape}"
            )
        if entry.dtype == "BF16" and array.dtype != FLOATS["BF16"]:
            raise ValueError(f"tensor {name} got {array.dtype} for bfloat16; expected its bits as {FLOATS['BF16']}")
        source = np.ascontiguousarray(array, FLOATS[entry.dtype])
        try:
            for offset, view in piece.runs(source):
                write_all(self._file.fileno(), view, offset)
            self._bring_to_disk(source.nbytes)
        except OSError as error:
            raise CheckpointError(
                f"cannot write tensor {name} to {self.path}: {error.strerror}; free space there or replace it"
            ) from error
        self._missing[name] -= source.nbytes

    def _bring_to_disk(self, nbytes: int) -> None:
        """Flush the file whenever _PART_NBYTES more were written.

        Otherwise a long save would end in a sync of minutes, which looks like a disk that hangs.
        """
        with self._lock:
            self._unsynced += nbytes
            is_due, self._unsynced = self._unsynced >= _PART_NBYTES, self._unsynced % _PART_NBYTES
        if is_due:
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Flush the bytes to the disk and give the file its name.

        Raises ValueError, and removes the file, if bytes of a tensor were not written, because they would read as zeros. Raises
        CheckpointError if the disk fails.
        """
        if self._file.closed:
            return
        short = [f"{name} ({n} bytes)" for name, n in self._missing.items() if n > 0]
        if short:
            self.discard()
            raise ValueError(
                f"{self.path} was closed before all its tensors were written; missing: {', '.join(short[:4])}"
            )
        try:
            os.fsync(self._file.fileno())
            os.replace(self._part, self.path)
            fsync(self.path.parent)
        except OSError as error:
            self.discard()
            raise CheckpointError(
                f"cannot flush {self.path} to the disk: {error.strerror}; free space there or replace it"
            ) from error
        self._file.close()

    def discard(self) -> None:
        """Close and remove the unfinished file; do nothing after `close()`."""
        if not self._file.closed:
            self._file.close()
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


class TensorReader:
    """The tensors of a `.safetensors` file, of a folder with `model.safetensors`, or of the shards that stand for such a file.

    Where the file is missing and `NAME.index.json` is beside its place, that index names the shards. most: the most tensors
    that the caller expects; None: as many as a header can describe. Raises CheckpointError, before any tensor is read, if a
    file is missing, unreadable, truncated, damaged, or too large for so few tensors.
    """

    def __init__(self, path: str | os.PathLike[str], most: int | None = None) -> None:
        self.path = Path(path)
        self.metadata: dict[str, str] = {}
        self._entries: dict[str, TensorEntry] = {}
        self._files: dict[str, tuple[Path, BinaryIO]] = {}  # by tensor
        #: the names of the files that were opened, and of the index if it was read
        self.files: list[str] = []
        try:
            for file, wanted in _shards(self.path, most):
                if wanted is not None and not self.files:
                    self.files.append(INDEX if self.path.is_dir() else index_beside(self.path.name))
                self._open(file, wanted, most)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, wanted: set[str] | None, most: int | None) -> None:
        try:
            file = open_file(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            entries, metadata = read_header(file, path, most)
            found = {entry.name: entry for entry in entries if wanted is None or entry.name in wanted}
            absent = sorted((wanted or set()) - found.keys())
            if absent:
                raise CheckpointError(
                    f"{path} lacks tensor {shown(absent[0])}, which the index says it holds; copy the shards again"
                )
        except OSError as error:
            file.close()
            raise _unreadable(path, error) from error
        except BaseException:
            file.close()
            raise
        if not found:
            file.close()
        self.files.append(path.name)
        self._entries |= found
        self._files |= dict.fromkeys(found, (path, file))
        self.metadata |= metadata

    def names(self) -> list[str]:
        """Return the tensors' names, in the order of their bytes."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; KeyError for an unknown name."""
        return _lookup(self._entries, name, self.path).shape

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor as the file spells it ("F32", "BF16", "I64", ...); KeyError for an unknown name."""
        return _lookup(self._entries, name, self.path).dtype

    def read(self, name: str, index: Index = ()) -> NDArray[np.float32]:
        """Return a fresh contiguous float32 array of tensor `name` at `index`.

        index: one slice of step 1 per dimension, clipped as in numpy; () is the whole tensor. F16, BF16 and F64 are converted.
        Raises KeyError for an unknown name, ValueError for an index that does not fit, CheckpointError for a tensor of
        integers, or for a file that fails or has shrunk.
        """
        entry = _lookup(self._entries, name, self.path)
        target = self._read(entry, index)
        if entry.dtype == "BF16":  # the upper half of a float32
            wide = target.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        return target.astype(np.float32, copy=False)

    def bits(self, name: str, index: Index = ()) -> NDArray[np.uint16]:
        """Return a fresh contiguous uint16 array with the bits of a bfloat16 tensor at `index`, without converting them.

        Raises as `read`, and ValueError for a tensor of another dtype.
        """
        entry = _lookup(self._entries, name, self.path)
        if entry.dtype != "BF16":
            raise ValueError(f"tensor {name} of {self.path} holds {entry.dtype}, expected BF16; read its values instead")
        return self._read(entry, index)

    def _read(self, entry: TensorEntry, index: Index) -> NDArray[Any]:
        """Return an array with the elements of a tensor at `index` as the file has them, bfloat16 as bits."""
        name = entry.name
        if entry.dtype not in FLOATS:
            raise CheckpointError(
                f"tensor {name} of {self.path} holds {entry.dtype}; expected one of {', '.join(FLOATS)}"
            )
        piece = find_piece(entry, index)
        target = np.empty(piece.shape, FLOATS[entry.dtype])
        path, file = self._files[name]
        try:
            for offset, view in piece.runs(target):
                read_all(file.fileno(), view, offset, path)
        except OSError as error:
            raise CheckpointError(
                f"cannot read tensor {name} from {path}: {error.strerror}; copy the checkpoint again"
            ) from error
        return target

    def close(self) -> None:
        """Close the files; the tensors' names and shapes stay readable."""
        for _, file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot read {path}: {error.strerror}; name a .safetensors file or a folder that has one"
    )


def _shards(path: Path, most: int | None) -> Iterable[tuple[Path, set[str] | None]]:
    """Return the files of a checkpoint, each with the names of the tensors to take from it (None: all)."""
    whole = path / WEIGHTS if path.is_dir() else path
    index = whole.with_name(index_beside(whole.name))
    if whole.exists() or not index.exists():
        return [(whole, None)]
    table = read_json(index)
    names = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(names, dict) or not all(isinstance(file, str) and _is_name(file) for file in names.values()):
        raise CheckpointError(
            f"{index} is damaged: expected a weight_map of tensor names and file names beside it; copy it again"
        )
    shards: dict[str, set[str]] = {}
    for name, file in names.items():
        shards.setdefault(file, set()).add(name)
    if most is not None and len(shards) > most:
        raise CheckpointError(
            f"{index} names {len(shards)} files for a model of at most {most} tensors; copy it again"
        )
    return [(whole.with_name(file), shards[file]) for file in sorted(shards)]


def _is_name(file: str) -> bool:
    """Return whether `file` is a valid name inside a folder that a message can print."""
    return Path(file).name == file and file.isprintable() and len(os.fsencode(file)) <= _MAX_NAME_NBYTES


def _lookup(entries: Mapping[str, TensorEntry], name: str, path: Path) -> TensorEntry:
    try:
        return entries[name]
    except KeyError:
        raise KeyError(
            f"{path} has no tensor {name}; it has {len(entries)}, such as {next(iter(entries), 'none')}"
        ) from None
