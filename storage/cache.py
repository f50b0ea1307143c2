"""A folder of files that may be lost: what took long to make, kept from one start of a program to the next.

Covers `Cache`. Nothing here fails: where a folder cannot be written nothing is kept, and what cannot be read is not there.
Files appear whole, several processes may share a folder, and those used longest ago are dropped. A file may still be damaged,
or somebody else's: whoever reads one checks it as if it had been typed.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from asynctile.storage.errors import CheckpointError
from asynctile.storage.input import read_file
from asynctile.storage.inside import Folder, part_of, write_whole

__all__ = ["Cache"]

#: What a disk, a folder or a name may say.
_FAULTS = (OSError, CheckpointError)


class Cache:
    """Files called *`suffix` in the folder `name` of `parent`, made when the first is kept: at most `most`, together of at most
    `most_nbytes`, and each of at most `largest_nbytes`.
    """

    def __init__(self, parent: Path, name: str, suffix: str, *, most: int, most_nbytes: int, largest_nbytes: int) -> None:
        self.path = parent / name
        self._suffix = suffix
        self._mine = re.compile(rf"\.?\w+{re.escape(suffix)}(\.\w+\.part)?")
        self._most = most
        self._most_nbytes = most_nbytes
        self._largest_nbytes = largest_nbytes

    def read(self, key: str) -> bytes | None:
        """What was kept as `key`, which is then the one used last; None if there is nothing that can be read."""
        name = key + self._suffix
        try:
            content = read_file(self.path / name, self._largest_nbytes)
        except OSError:
            return None
        with suppress(*_FAULTS), self._opened() as folder:
            os.utime(name, dir_fd=folder.fd, follow_symlinks=False)
        return content

    def keep(self, key: str, content: bytes) -> None:
        """Keep it, if that can be, in the place of what was kept as `key` before."""
        if len(content) > self._largest_nbytes:
            return
        with suppress(*_FAULTS), self._opened(make=True) as folder:
            self._write(folder, key + self._suffix, content)
            self._drop(folder)

    def _opened(self, *, make: bool = False) -> Folder:
        with Folder.open(self.path.parent) as parent:
            return parent.inside(self.path.name, make=make)

    def _write(self, folder: Folder, name: str, content: bytes) -> None:
        """Whole, and not brought to the disk: what a crash leaves of it is read as damaged, and made again."""
        part = part_of(name)
        try:
            fd = folder.new_file(part)
            try:
                write_whole(fd, content)
            finally:
                os.close(fd)
            folder.rename(part, name)
        except BaseException:
            folder.remove(part)
            raise

    def _drop(self, folder: Folder) -> None:
        """Those used longest ago go, and with them what a kill has left of one that was being written."""
        found = ((name, folder.stat(name)) for name in folder.names() if self._mine.fullmatch(name))
        files = [(its.st_mtime_ns, name, its.st_size) for name, its in found if its is not None and stat.S_ISREG(its.st_mode)]
        nbytes = 0
        for place, (_, name, size) in enumerate(sorted(files, reverse=True), 1):
            nbytes += size
            if place > self._most or nbytes > self._most_nbytes:
                folder.remove(name)
