"""A cache folder: results that took long to compute, kept between two starts of a program. Its files may vanish any time.

Covers `Cache`. Nothing here raises: if the folder cannot be written, nothing is kept, and a file that cannot be read counts as
missing. Files appear complete or not at all, several processes may share a folder, and the least recently used files are
dropped. A file may still be damaged or foreign, so its reader must check the content as it would check user input.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from asynctile.storage.errors import CheckpointError
from asynctile.storage.input import read_file
from asynctile.storage.inside import Folder

__all__ = ["Cache"]

#: Errors of a disk, a folder or a name.
_FAULTS = (OSError, CheckpointError)


class Cache:
    """Files named *`suffix` in the folder `name` of `parent`, which is created when the first file is kept.

    At most `most` files are kept, of together at most `most_nbytes`, and each of at most `largest_nbytes`.
    """

    def __init__(self, parent: Path, name: str, suffix: str, *, most: int, most_nbytes: int, largest_nbytes: int) -> None:
        self.path = parent / name
        self._suffix = suffix
        self._mine = re.compile(rf"\.?\w+{re.escape(suffix)}(\.\w+\.part)?")
        self._most = most
        self._most_nbytes = most_nbytes
        self._largest_nbytes = largest_nbytes

    def read(self, key: str) -> bytes | None:
        """Return the content kept as `key` and mark it as used now; None if nothing readable is there."""
        name = key + self._suffix
        try:
            content = read_file(self.path / name, self._largest_nbytes)
        except OSError:
            return None
        with suppress(*_FAULTS), self._opened() as folder:
            os.utime(name, dir_fd=folder.fd, follow_symlinks=False)
        return content

    def keep(self, key: str, content: bytes) -> None:
        """Keep `content` as `key`, replacing older content. Does nothing if that fails or if the content is too large."""
        if len(content) > self._largest_nbytes:
            return
        with suppress(*_FAULTS), self._opened(make=True) as folder:
            folder.write(key + self._suffix, content)
            self._drop(folder)

    def _opened(self, *, make: bool = False) -> Folder:
        with Folder.open(self.path.parent) as parent:
            return parent.inside(self.path.name, make=make)

    def _drop(self, folder: Folder) -> None:
        """Remove the least recently used files beyond the limits, and with them unfinished files that a kill left."""
        found = ((name, folder.stat(name)) for name in folder.names() if self._mine.fullmatch(name))
        files = [(its.st_mtime_ns, name, its.st_size) for name, its in found if its is not None and stat.S_ISREG(its.st_mode)]
        nbytes = 0
        for place, (_, name, size) in enumerate(sorted(files, reverse=True), 1):
            nbytes += size
            if place > self._most or nbytes > self._most_nbytes:
                folder.remove(name)
