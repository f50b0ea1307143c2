"""Folders and small files that appear whole or not at all.

Covers `replace_folder`, `write_json` and `read_json`. Everything is written beside its place, brought to the
disk, then renamed: whoever looks sees the old or the new, never a half. What is inside a checkpoint's folder
is `checkpoint.py` and `tensors.py`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import CheckpointError

__all__ = ["fsync", "read_json", "replace_folder", "write_file", "write_json"]


@contextmanager
def replace_folder(final: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a fresh folder beside `final` to fill; on success it becomes `final`, on any error it is removed.

    Missing parents are made. An existing `final` is replaced as a whole; on failure it stays as it was. A
    folder cannot take the place of a full one in one rename: a machine that stops between the two leaves the
    old one beside as `.NAME.<id>.old`. Raises ValueError if `final` is a file, OSError if the disk fails.
    """
    final = Path(final)
    if final.exists() and not final.is_dir():
        raise ValueError(f"{final} is a file; expected a folder or a name that is free")
    final.parent.mkdir(parents=True, exist_ok=True)
    stem = f".{final.name}.{secrets.token_hex(4)}"
    fresh = final.with_name(f"{stem}.new")
    fresh.mkdir()  # not tempfile: its folders are closed to everyone else, and the mode would stay
    try:
        yield fresh
        _fsync_tree(fresh)
        _swap(fresh, final, final.with_name(f"{stem}.old"))
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _swap(fresh: Path, final: Path, aside: Path) -> None:
    replaced = final.exists()
    if replaced:
        os.rename(final, aside)
    try:
        os.rename(fresh, final)
    except BaseException:
        if replaced:
            os.rename(aside, final)
        raise
    fsync(final.parent)
    if replaced:
        # The new folder stands; a file of the old one that cannot be removed is litter, not a failed save.
        shutil.rmtree(aside, ignore_errors=True)


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
    """Write a small file whole: beside its place, to the disk, then renamed. Raises OSError if the disk
    fails.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write `obj` as JSON, whole or not at all. Floats read back bit for bit. TypeError for what JSON cannot
    hold.
    """
    write_file(path, (json.dumps(obj, indent=2) + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. Raises CheckpointError, naming the file, if it is missing, unreadable or damaged."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; name a folder that was saved whole"
        ) from error
    try:
        return json.loads(content)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged: its {len(content)} bytes are not JSON ({error}); "
            "use another checkpoint or copy it again"
        ) from error
