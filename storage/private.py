"""Folders in the user's cache that nobody else can write, for what is run as it is read: machine code.

Covers finding or making one, one process at a time in it, and dropping those that nobody has used for long. Nothing here fails:
where somebody else could write, or this process cannot, there is no such folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from asynctile.storage.errors import CheckpointError
from asynctile.storage.inside import Folder

__all__ = ["alone", "drop_unused", "private_folder", "user_cache"]

#: Folders that nobody has used for so long are dropped, seconds.
UNUSED_S = 30 * 24 * 3600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def user_cache() -> Path | None:
    """XDG_CACHE_HOME if that is an absolute path, else `.cache` at home; None for a user without a home."""
    for path in (Path(os.environ.get("XDG_CACHE_HOME", "")), Path(os.path.expanduser("~"), ".cache")):
        if path.is_absolute():
            return path
    return None


def private_folder(parent: Path, *names: str) -> Path | None:
    """`parent/names...`, marked as used now; made where it is missing, for its owner alone (mode 0700).

    None if it cannot be made or written, if one of `names` is a link, belongs to somebody else or can be written by others, or
    if others could put another folder in the place of `parent` or of one above it.
    """
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        path = parent.resolve()
        if not all(_is_trusted(folder) for folder in (path, *path.parents)):
            return None
        for name in names:
            path /= name
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            if not _is_own(path):
                return None
        os.utime(path)
    except (OSError, RuntimeError):  # RuntimeError: links that lead to each other
        return None
    return path if os.access(path, os.R_OK | os.W_OK | os.X_OK) else None


def drop_unused(parent: Path, names: re.Pattern[str]) -> None:
    """Remove the folders of `parent` with such names that `private_folder` has not been asked for in UNUSED_S."""
    with suppress(OSError, CheckpointError), Folder.open(parent) as folder:
        for name in folder.names():
            found = folder.stat(name) if names.fullmatch(name) else None
            if found is not None and stat.S_ISDIR(found.st_mode) and found.st_mtime < time.time() - UNUSED_S:
                folder.clear_away(name)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time is inside, by a lock on this folder; all at once where no lock can be had."""
    with ExitStack() as held:
        with suppress(OSError):
            fcntl.flock(held.enter_context(Folder.open(path)).fd, fcntl.LOCK_EX)
        yield


def _is_own(path: Path) -> bool:
    """Whether this is a folder that this user has, and nobody else can write."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _is_trusted(path: Path) -> bool:
    """Whether only this user and root can rename what is theirs in this folder."""
    found = path.stat()
    return found.st_uid in (0, os.geteuid()) and bool(not found.st_mode & _OTHERS_WRITE or found.st_mode & stat.S_ISVTX)
