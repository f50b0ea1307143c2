"""What stands beside a folder while it is replaced: its name, its lock, the swap, and what a kill leaves of it.

Beside a folder NAME, `.NAME.<id>.new` is litter unless the process that fills it is alive, which a lock says, and
`.NAME.<id>.old` is always whole: it stands there between two renames, where the system cannot exchange names.
Covers `swap`, `recover_folder`, `recover_folders` and `remove_folder`. Filling a folder is `folder.py`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["beside", "fsync", "held", "recover_folder", "recover_folders", "remove_folder", "swap"]

_BESIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>new|old)")
#: of <fcntl.h> and <linux/fs.h>
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def swap(fresh: Path, final: Path) -> None:
    """Make `fresh` be `final`; the older `final`, if there is one, is then found where `fresh` was."""
    if not final.exists():
        os.rename(fresh, final)
    elif not _exchange(fresh, final):
        aside = fresh.with_suffix(".old")
        with held(final):
            os.rename(final, aside)
            try:
                os.rename(fresh, final)
            except BaseException:
                os.rename(aside, final)
                raise
            os.rename(aside, fresh)  # from here it is litter, whole or not
    fsync(final.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the C library, the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    names = [os.fsencode(path) for path in (one, other)]
    # Whatever it failed of, two renames are tried next, and say so if it was more than not being able.
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Wait for the lock of a folder and hold it. It goes with the process, however that ends."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(fd)


def _is_litter(folder: Path) -> bool:
    """Whether no living process holds the folder; False where that cannot be known."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def beside(folder: Path) -> Path:
    """A name of its own for what will take the place of `folder`."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.new")


def _left_in(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if _BESIDE.fullmatch(path.name)]


def _name_of(path: Path) -> str:
    """The name of the folder that `path` stands beside."""
    match = _BESIDE.fullmatch(path.name)
    assert match is not None
    return match["name"]


def _mtime(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def recover_folder(final: str | os.PathLike[str]) -> None:
    """Undo what a process killed while it replaced `final` left: put the whole folder back, if only the copy beside
    its place is there, and remove the rest.

    Leaves alone what a living process is filling. Raises OSError if the whole copy cannot be renamed.
    """
    final = Path(os.path.realpath(final))
    left = [path for path in _left_in(final.parent) if _name_of(path) == final.name]
    # Whole copies first, the newest before others: only one can be missed.
    for path in sorted(left, key=lambda path: (path.suffix == ".old", _mtime(path)), reverse=True):
        if path.suffix == ".new":
            if _is_litter(path):
                shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            with held(path):  # a living process has it for no longer than two renames
                if not final.exists():
                    os.rename(path, final)
                    fsync(final.parent)
                elif path.exists():
                    litter = path.with_suffix(".new")
                    os.rename(path, litter)
                    shutil.rmtree(litter, ignore_errors=True)
        except FileNotFoundError:
            continue  # the living process has finished


def recover_folders(parent: str | os.PathLike[str]) -> None:
    """`recover_folder` for every folder of `parent` that something stands beside."""
    parent = Path(parent)
    for name in sorted({_name_of(path) for path in _left_in(parent)}):
        recover_folder(parent / name)


def remove_folder(folder: str | os.PathLike[str]) -> None:
    """Remove a folder; a process that is killed meanwhile leaves no half of it under its name."""
    folder = Path(os.path.realpath(folder))
    litter = beside(folder)
    os.rename(folder, litter)
    shutil.rmtree(litter)


def fsync(path: Path) -> None:
    """Bring a file's bytes to the disk, or a folder's list of names, which a rename in it changed."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
