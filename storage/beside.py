"""What stands beside a folder while it is replaced: its name, its lock, the swap, and what a kill leaves of it.

Beside a folder NAME, `.NAME.<id>.new` is litter unless the process that fills it is alive, which a lock says, and
`.NAME.<id>.old` is always whole: it stands there between two renames, where the system cannot exchange names.
Covers `swap`, `recover_folder`, `recover_folders` and `remove_folder`, in a parent that is held open, and `whole_folder`, by
which commands that only read find what a kill has left, and change nothing. Filling a folder is `folder.py`.
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

__all__ = ["beside", "held", "recover_folder", "recover_folders", "remove_folder", "swap", "whole_folder", "whole_names"]

_BESIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>new|old)")


def swap(parent: Folder, fresh: str, final: str) -> None:
    """Make `fresh` be `final`; the older `final`, if there is one, is then found where `fresh` was."""
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
            parent.rename(aside, fresh)  # from here it is litter, whole or not
    parent.sync()


@contextmanager
def held(parent: Folder, name: str) -> Iterator[None]:
    """Wait for the lock of a folder and hold it. It goes with the process, however that ends."""
    with parent.inside(name) as folder:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder.fd, fcntl.LOCK_EX)
        yield


def _is_litter(parent: Folder, name: str) -> bool:
    """Whether no living process holds the folder; False where that cannot be known."""
    try:
        with parent.inside(name) as folder:
            fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def beside(name: str) -> str:
    """A name of its own for what will take the place of the folder `name`."""
    return f".{name}.{secrets.token_hex(4)}.new"


def _left_in(parent: Folder) -> list[tuple[str, str]]:
    """What a kill left: (name, of which folder). Links are never ours."""
    found = [(name, match["name"]) for name in parent.names() if (match := _BESIDE.fullmatch(name))]
    return [(name, of) for name, of in found if (at := parent.stat(name)) is not None and stat.S_ISDIR(at.st_mode)]


def _old_copies(parent: Folder, final: str) -> list[str]:
    """The whole copies beside the place of `final`, the newest first."""

    def mtime(name: str) -> int:
        found = parent.stat(name)
        return 0 if found is None else found.st_mtime_ns

    return sorted((name for name, of in _left_in(parent) if of == final and name.endswith(".old")), key=mtime, reverse=True)


def recover_folder(parent: Folder, final: str) -> None:
    """Undo what a process killed while it replaced `final` left: put the whole folder back, if only the copy beside
    its place is there, and remove the rest.

    Leaves alone what a living process is filling. Raises OSError if the whole copy cannot be renamed.
    """
    # Whole copies first, the newest before others: only one can be missed.
    for name in _old_copies(parent, final):
        with suppress(FileNotFoundError), held(parent, name):  # a living process has it for no longer than two renames
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
    """`recover_folder` for every folder of `parent` that something stands beside."""
    for final in sorted({of for _, of in _left_in(parent)}):
        recover_folder(parent, final)


def remove_folder(parent: Folder, name: str) -> None:
    """Remove a folder; a process that is killed meanwhile leaves no half of it under its name. CheckpointError for a link."""
    litter = beside(name)
    parent.inside(name).close()  # it is a folder, and no link
    parent.rename(name, litter)
    parent.remove_tree(litter)


def whole_folder(path: str | os.PathLike[str]) -> Path:
    """Where the folder `path` is to be read: in its place or, if a kill has left it beside that, there. Changes nothing."""
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
    """The folders that stand whole in `parent`, or are linked there, in their place or, after a kill, beside it: the names of
    the places.
    """
    names = {name for name in parent.names() if not _BESIDE.fullmatch(name)}
    names = {name for name in names if (at := parent.stat(name)) and (stat.S_ISDIR(at.st_mode) or stat.S_ISLNK(at.st_mode))}
    return names | {of for name, of in _left_in(parent) if name.endswith(".old")}
