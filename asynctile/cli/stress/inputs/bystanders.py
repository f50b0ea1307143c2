"""Files that no command may touch: a tree beside the folders of a call, and everything else nearby.

Covers surveying a tree and listing what has changed since. It opens only folders, by descriptors: a pipe does not block it, and
a path may be longer than the system allows.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["Survey", "changes", "survey"]

#: path under the root -> mode, inode, then size, mtime in ns, number of links, ctime in ns
Survey = dict[str, tuple[int, ...]]


def survey(root: Path, *, but: Path | None = None) -> Survey:
    """Return a survey of everything under `root`, following no link.

    The path `but` and everything under it is left out, and so is the time of change of its folder.
    """
    seen: Survey = {}
    left_out = None if but is None else os.path.relpath(but, root)
    for folder, folders, files, at in os.fwalk(root, follow_symlinks=False):
        here = os.path.relpath(folder, root) if len(folder) < 4000 else folder
        for name in (*folders, *files):
            path = os.path.normpath(f"{here}/{name}")
            if path == left_out:
                continue
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
            seen[path] = (found.st_mode, found.st_ino)
            if left_out is None or not stat.S_ISDIR(found.st_mode) or os.path.dirname(left_out) != path:
                seen[path] += (found.st_size, found.st_mtime_ns, found.st_nlink, found.st_ctime_ns)
        folders[:] = [name for name in folders if os.path.normpath(f"{here}/{name}") != left_out]
    return seen


def changes(before: Survey, after: Survey) -> list[str]:
    """Return the differences in words."""
    words = [
        (after.keys() - before.keys(), "was made"), (before.keys() - after.keys(), "is gone"),
        ({path for path in before.keys() & after.keys() if _differ(before[path], after[path])}, "was changed"),
    ]  # fmt: skip
    return [f"{path} {word}" for paths, word in words for path in sorted(paths)]


def _differ(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether more has changed than that a hard link elsewhere came or went, which also changes the ctime."""
    return before[:4] != after[:4] or (before[4:5] == after[4:5] and before != after)
