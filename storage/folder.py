"""Folders and small files that appear whole or not at all.

Covers `replace_folder`, `write_file`, `write_json` and `read_json`. Everything is written beside its place, brought
to the disk, then renamed: whoever looks sees the old or the new, never a half. How a folder takes another's place,
and what a kill leaves, is `beside.py`; the same documents from a coroutine `documents.py`; what is taken for a file and for
JSON at all `input.py`; what is inside a checkpoint's folder `tensors.py`, `checksums.py` and the layers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asynctile.storage.beside import beside, held, recover_folder, swap
from asynctile.storage.errors import CheckpointError
from asynctile.storage.input import parse_json, read_file
from asynctile.storage.inside import Folder

__all__ = ["decode_json", "encode_json", "fsync", "read_json", "replace_folder", "unreadable", "write_file", "write_json"]


@contextmanager
def replace_folder(final: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a fresh folder beside `final` to fill; on success it becomes `final`, on any error it is removed.

    Missing parents are made, what a killed process left of `final` is cleared away. An existing `final` is replaced
    as a whole; on failure, and after a kill at any moment and `recover_folder`, it is as it was. Raises ValueError
    if `final` is a file, OSError if the disk fails.
    """
    final = Path(os.path.realpath(final))  # where a link leads: the link itself cannot be filled
    if final.exists() and not final.is_dir():
        raise ValueError(f"{final} is a file; expected a folder or a name that is free")
    _make_folders(final.parent)
    with Folder.open(final.parent) as parent:
        recover_folder(parent, final.name)
        fresh = beside(final.name)
        parent.make(fresh)  # not tempfile: its folders are closed to everyone else, and the mode would stay
        try:
            with held(parent, fresh):
                yield final.with_name(fresh)
                _fsync_tree(final.with_name(fresh))
                swap(parent, fresh, final.name)
        finally:
            # The unfinished folder, or the older one, which the new one has sent here. A file that cannot be removed is
            # litter, not a failed save.
            parent.clear_away(fresh)


def _make_folders(folder: Path) -> None:
    """Make a folder and its parents; their names are on the disk before anything is put in."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        fsync(path.parent)


def _fsync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            fsync(Path(root, name))
        fsync(Path(root))


def fsync(path: Path) -> None:
    """Bring a file's bytes to the disk, or a folder's list of names, which a rename in it changed."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a small file whole: beside its place, to the disk, then renamed. Raises OSError if the disk fails."""
    path = Path(path)
    with Folder.open(path.parent) as parent:
        parent.write(path.name, content)


def encode_json(obj: Any) -> bytes:
    """`obj` as JSON. Floats read back bit for bit. TypeError for what JSON cannot hold."""
    return (json.dumps(obj, indent=2) + "\n").encode()


def decode_json(content: bytes, path: str | os.PathLike[str], *, finite: bool = True) -> Any:
    """What the bytes of the JSON file `path` say, as `parse_json` reads it; CheckpointError, naming it, if damaged."""
    try:
        return parse_json(content, finite=finite)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged: its {len(content)} bytes are not JSON ({error}); "
            "use another checkpoint or copy it again"
        ) from error


def unreadable(path: str | os.PathLike[str], error: OSError) -> CheckpointError:
    """The error for a file of a checkpoint that the system would not read."""
    return CheckpointError(f"cannot read {path}: {error.strerror}; name a folder that was saved whole")


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write `obj` as JSON, whole or not at all."""
    write_file(path, encode_json(obj))


def read_json(path: str | os.PathLike[str], *, finite: bool = True) -> Any:
    """Read a JSON file of at most DOCUMENT_NBYTES. CheckpointError, naming it, if it is missing, unreadable or damaged."""
    try:
        content = read_file(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return decode_json(content, path, finite=finite)
