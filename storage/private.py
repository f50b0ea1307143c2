"""Private folders in the user's cache, for files that are executed, such as machine code: nobody else can write there.

Covers finding or making such a folder, locking it for one process at a time, and dropping folders that were not used for long.
Nothing here raises: if somebody else could write to a folder, or this process cannot, there is no such folder.
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

#: Folders that were not used for so many seconds are dropped.
UNUSED_S = 30 * 24 * 3600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def user_cache() -> Path | None:
    """Return XDG_CACHE_HOME if it is an absolute path, else `.cache` in the home folder; None for a user without a home."""
    for path in (Path(os.environ.get("XDG_CACHE_HOME", "")), Path(os.path.expanduser("~"), ".cache")):
        if path.is_absolute():
            return path
    return None


def private_folder(parent: Path, *names: str) -> Path | None:
    """Return the folder `parent/names...`, made if missing with mode 0700, and mark it as used now.

    None if it cannot be made or written; if one of `names` is a link, belongs to another user or is writable by others; or if
    others could replace `parent` or one of its parents.
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
    except (OSError, RuntimeError):  # RuntimeError: a cycle of links
        return None
    return path if os.access(path, os.R_OK | os.W_OK | os.X_OK) else None


def drop_unused(parent: Path, names: re.Pattern[str]) -> None:
    """Remove the folders of `parent` that match `names` and that `private_folder` has not returned within UNUSED_S."""
    with suppress(OSError, CheckpointError), Folder.open(parent) as folder:
        for name in folder.names():
            found = folder.stat(name) if names.fullmatch(name) else None
            if found is not None and stat.S_ISDIR(found.st_mode) and found.st_mtime < time.time() - UNUSED_S:
                folder.clear_away(name)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock on the folder, so that one process at a time is inside. Without locks, all processes enter at once."""
    with ExitStack() as held:
        with suppress(OSError):
            fcntl.flock(held.enter_context(Folder.open(path)).fd, fcntl.LOCK_EX)
        yield


def _is_own(path: Path) -> bool:
    """Return whether the path is a folder of this user that no other user can write."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _is_trusted(path: Path) -> bool:
    """Return whether only this user and root can rename their own entries in this folder."""
    found = path.stat()
    return found.st_uid in (0, os.geteuid()) and bool(not found.st_mode & _OTHERS_WRITE or found.st_mode & stat.S_ISVTX)
