"""Folders and small files that appear completely or not at all.

Covers `replace_folder`, `write_file`, `write_json` and `read_json`. Everything is written beside its final place, flushed to
the disk, then renamed. A reader sees the old content or the new one, never a mixture.

How one folder replaces another, and how a kill is cleaned up, is `beside.py`. The same functions for coroutines are
`documents.py`. Which files and which JSON are accepted at all is `input.py`. The content of a checkpoint's folder is
`tensors.py`, `checksums.py` and the layers.
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
    """Yield a fresh folder beside `final` to fill. On success it becomes `final`; on any error it is removed.

    Missing parents are made, and leftovers of a killed process are cleared away. An existing `final` is replaced as a whole.
    After a failure it is unchanged; after a kill at any moment, `recover_folder` restores it. Raises ValueError if `final` is a
    file, OSError if the disk fails.
    """
    final = Path(os.path.realpath(final))  # the target of a link: the link itself cannot be filled
    if final.exists() and not final.is_dir():
        raise ValueError(f"{final} is a file; expected a folder or a name that is free")
    _make_folders(final.parent)
    with Folder.open(final.parent) as parent:
        recover_folder(parent, final.name)
        fresh = beside(final.name)
        parent.make(fresh)  # not tempfile: only the owner can enter its folders, and that mode would stay
        try:
            with held(parent, fresh):
                yield final.with_name(fresh)
                _fsync_tree(final.with_name(fresh))
                swap(parent, fresh, final.name)
        finally:
            # `fresh` is now the unfinished folder or, after the swap, the older one. A file that cannot be removed is litter,
            # not a failed save.
            parent.clear_away(fresh)


def _make_folders(folder: Path) -> None:
    """Make a folder and its parents, and flush their names to the disk before anything is put in."""
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
    """Flush a file's bytes to the disk, or a folder's list of names after a rename in it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a small file completely or not at all: beside its place, flushed to the disk, then renamed.

    Raises OSError if the disk fails.
    """
    path = Path(path)
    with Folder.open(path.parent) as parent:
        parent.write(path.name, content)


def encode_json(obj: Any) -> bytes:
    """Return `obj` as JSON. Floats read back bit for bit. TypeError for objects that JSON cannot hold."""
    return (json.dumps(obj, indent=2) + "\n").encode()


def decode_json(content: bytes, path: str | os.PathLike[str], *, finite: bool = True) -> Any:
    """Return the content of the JSON file `path`, given its bytes, as `parse_json` reads it.

    Raises CheckpointError, which names the file, if it is damaged.
    """
    try:
        return parse_json(content, finite=finite)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged: its {len(content)} bytes are not JSON ({error}); "
            "use another checkpoint or copy it again"
        ) from error


def unreadable(path: str | os.PathLike[str], error: OSError) -> CheckpointError:
    """Return the error for a file of a checkpoint that the system could not read."""
    return CheckpointError(f"cannot read {path}: {error.strerror}; name a folder that was saved completely")


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write `obj` as JSON, completely or not at all."""
    write_file(path, encode_json(obj))


def read_json(path: str | os.PathLike[str], *, finite: bool = True) -> Any:
    """Read a JSON file of at most DOCUMENT_NBYTES.

    Raises CheckpointError, which names the file, if it is missing, unreadable or damaged.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return decode_json(content, path, finite=finite)
