"""Replacing a folder as a whole: temporary names beside it, a lock, the swap, and recovery after a kill.

Beside a folder NAME there may be two kinds of helper folders:
- `.NAME.<id>.new`, a folder that a process is filling. If no living process holds its lock, it is litter.
- `.NAME.<id>.old`, the previous folder, always complete. It exists between two renames, on systems that cannot exchange names.

Covers `swap`, `recover_folder`, `recover_folders` and `remove_folder`, all in a parent folder that is held open. Commands that
only read use `whole_folder`, which finds the complete copy and changes nothing. Filling a folder is `folder.py`.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asynctile.storage.inside import Folder

__all__ = [
    "beside", "fresh_folder", "held", "recover_folder", "recover_folders", "remove_folder", "swap", "whole_folder",
    "whole_names",
]  # fmt: skip

_BESIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>new|old)")


def swap(parent: Folder, fresh: str, final: str) -> None:
    """Make the folder `fresh` take the name `final`; a previous `final` then has the name `fresh`."""
    if parent.stat(final) is None:
        parent.rename(fresh, final)
    elif not parent.exchange(fresh, final):
        aside = fresh.removesuffix(".new") + ".old"
        with held(parent, final):
            parent.rename(final, aside)
            try:
                parent.rename(fresh, final)
            except BaseException:
                parent.rename(aside, final)
                raise
            parent.rename(aside, fresh)  # from here on it is litter, complete or not
    parent.sync()


@contextmanager
def held(parent: Folder, name: str) -> Iterator[None]:
    """Wait for the lock of a folder, then hold it. The system drops the lock when the process ends, however it ends."""
    with parent.inside(name) as folder:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(folder.fd, fcntl.LOCK_EX)
        yield


def _is_litter(parent: Folder, name: str) -> bool:
    """Return whether no living process holds the folder; False if that cannot be determined."""
    try:
        with parent.inside(name) as folder:
            fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def beside(name: str) -> str:
    """Return a unique temporary name for the folder that will replace the folder `name`."""
    return f".{name}.{secrets.token_hex(4)}.new"


def fresh_folder(final: str | os.PathLike[str], name: str) -> Path:
    """Return the folder `name` beside `final`, which another process has made and fills together with this one.

    ValueError if it is not there, as where the process sees another disk under this path.
    """
    place = Path(os.path.realpath(final)).parent
    if (match := _BESIDE.fullmatch(name)) and match["kind"] == "new" and place.is_dir():
        with Folder.open(place) as parent:
            if (at := parent.stat(name)) is not None and stat.S_ISDIR(at.st_mode):
                return place / name
    raise ValueError(f"{place} has no folder {name}")


def _left_in(parent: Folder) -> list[tuple[str, str]]:
    """Return the helper folders that a kill left: (name, name of the folder it belongs to). Links are never ours."""
    found = [(name, match["name"]) for name in parent.names() if (match := _BESIDE.fullmatch(name))]
    return [(name, of) for name, of in found if (at := parent.stat(name)) is not None and stat.S_ISDIR(at.st_mode)]


def _old_copies(parent: Folder, final: str) -> list[str]:
    """Return the complete copies beside `final`, the newest first."""

    def mtime(name: str) -> int:
        found = parent.stat(name)
        return 0 if found is None else found.st_mtime_ns

    return sorted((name for name, of in _left_in(parent) if of == final and name.endswith(".old")), key=mtime, reverse=True)


def recover_folder(parent: Folder, final: str) -> None:
    """Clean up after a process that was killed while it replaced `final`.

    If `final` is missing and a complete copy stands beside it, the copy gets the name `final`. All other leftovers are removed,
    except those that a living process is filling. Raises OSError if the complete copy cannot be renamed.
    """
    # Complete copies first, the newest before the others: only one of them can be needed.
    for name in _old_copies(parent, final):
        with suppress(FileNotFoundError), held(parent, name):  # a living process holds it only for two renames
            if parent.stat(final) is None:
                parent.rename(name, final)
                parent.sync()
            else:
                litter = name.removesuffix(".old") + ".new"
                parent.rename(name, litter)
                parent.clear_away(litter)
    for name, of in _left_in(parent):
        if of == final and name.endswith(".new") and _is_litter(parent, name):
            parent.clear_away(name)


def recover_folders(parent: Folder) -> None:
    """Run `recover_folder` for every folder of `parent` that has a helper folder beside it."""
    for final in sorted({of for _, of in _left_in(parent)}):
        recover_folder(parent, final)


def remove_folder(parent: Folder, name: str) -> None:
    """Remove a folder; a kill in between never leaves half of it under its name. CheckpointError for a link."""
    litter = beside(name)
    parent.inside(name).close()  # raises for a link
    parent.rename(name, litter)
    parent.remove_tree(litter)


def whole_folder(path: str | os.PathLike[str]) -> Path:
    """Return where to read the folder `path`: its own place or, if a kill left the complete copy beside it, that copy.

    Changes nothing.
    """
    final = Path(path)
    if final.exists():
        return final
    final = Path(os.path.realpath(final))
    if not final.parent.is_dir():
        return final
    with Folder.open(final.parent) as parent:
        for name in _old_copies(parent, final.name):
            with suppress(FileNotFoundError), held(parent, name):
                if parent.stat(final.name) is None:
                    return final.with_name(name)
    return final


def whole_names(parent: Folder) -> set[str]:
    """Return the names of the folders in `parent` that are complete, in place or (after a kill) beside it; links count."""
    names = {name for name in parent.names() if not _BESIDE.fullmatch(name)}
    names = {name for name in names if (at := parent.stat(name)) and (stat.S_ISDIR(at.st_mode) or stat.S_ISLNK(at.st_mode))}
    return names | {of for name, of in _left_in(parent) if name.endswith(".old")}
