"""A folder held open by its descriptor, and operations on the plain names in it: nothing is written or removed through a link.

Covers `Folder`. Its path is resolved once, when it is opened; links in a path that a user typed are followed then. From then on
the folder is its descriptor, even if it is renamed. Everything inside is addressed by one plain name, and links there are never
followed.

How one folder replaces another is `beside.py`; files and folders by their path are `folder.py`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from asynctile.storage.errors import CheckpointError

__all__ = ["Folder", "is_a_link", "part_of", "write_whole"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: from <linux/fs.h>
_RENAME_EXCHANGE = 2
#: The errors for a link that is not followed: when a file or folder is opened, or made.
_REFUSALS = (errno.ELOOP, errno.ENOTDIR, errno.EEXIST)


class Folder:
    """An open folder, a context manager. `path` is the name it was opened by, for messages and for reading.

    Every method raises OSError with the whole path of the file that failed, and CheckpointError if it meets a link where it
    should open a file or folder.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the folder that `path` leads to, also through links."""
        return cls(Path(path), os.open(path, _FOLDER))

    def inside(self, name: str, *, make: bool = False) -> Folder:
        """Open a folder inside this one; with `make`, make it first if it is missing."""
        with self.naming(name):
            if make and self.stat(name) is None:
                os.mkdir(name, dir_fd=self.fd)
                self.sync()
            return Folder(self.path / name, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.fd))

    def names(self) -> list[str]:
        """Return the names in the folder, in no particular order."""
        with self.naming("."):
            # A fresh descriptor: copies of the folder's own share a position, and two threads may list at the same time.
            fd = os.open(".", _FOLDER, dir_fd=self.fd)
            try:
                return os.listdir(fd)
            finally:
                os.close(fd)

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of the name itself, never of a link's target; None if there is no such name."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def links(self, names: Iterable[str]) -> list[str]:
        """Return the names among `names` that are links."""
        return [name for name in names if (found := self.stat(name)) is not None and stat.S_ISLNK(found.st_mode)]

    def check_plain(self, names: Iterable[str]) -> None:
        """Raise CheckpointError for the first of `names` that exists and is not a regular file."""
        for name in names:
            found = self.stat(name)
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise is_a_link(self.path / name) if stat.S_ISLNK(found.st_mode) else _is_not_plain(self.path / name)

    def make(self, name: str) -> None:
        """Make a folder. FileExistsError if the name is taken, CheckpointError if it is taken by a link."""
        with self.naming(name):
            os.mkdir(name, dir_fd=self.fd)

    def new_file(self, name: str) -> int:
        """Make a file and return a descriptor for writing it; errors as those of `make`."""
        with self.naming(name):
            return os.open(name, _NEW, 0o666, dir_fd=self.fd)

    def append_file(self, name: str) -> int:
        """Return a descriptor for appending to a regular file, which is made if it is missing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self.naming(name):
            fd = os.open(name, flags, 0o666, dir_fd=self.fd)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise _is_not_plain(self.path / name)
            return fd

    def write(self, name: str, content: bytes) -> None:
        """Write a small file completely or not at all: beside its place, flushed to the disk, then renamed.

        If the name is a link, the file replaces the link, not its target.
        """
        with self.filling(name) as part:
            fd = self.new_file(part)
            with self.naming(name):
                try:
                    write_whole(fd, content)
                    os.fsync(fd)
                finally:
                    os.close(fd)

    @contextmanager
    def filling(self, name: str) -> Iterator[str]:
        """Yield a temporary name for writing a file, then rename that file to `name`; on an error remove it."""
        part = part_of(name)
        try:
            yield part
            self.put_in_place(part, name)
        except BaseException:
            self.remove(part)
            raise

    def put_in_place(self, part: str, name: str) -> None:
        """Rename a file that is on the disk to its final name."""
        with self.naming(name):
            os.replace(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        self.sync()

    def rename(self, name: str, to: str) -> None:
        """Rename a file, folder or link inside the folder; a link keeps its target."""
        with self.naming(name):
            os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def exchange(self, one: str, other: str) -> bool:
        """Swap two names in one step; return False if the C library, the system or the file system cannot."""
        try:
            renameat2 = ctypes.CDLL(None).renameat2
        except AttributeError:
            return False
        # The reason does not matter here: the caller then renames in two steps, and reports errors of those.
        return bool(renameat2(self.fd, os.fsencode(one), self.fd, os.fsencode(other), _RENAME_EXCHANGE) == 0)

    def remove(self, name: str) -> None:
        """Remove a file, or a link but not its target; do nothing if there is none."""
        with self.naming(name):
            try:
                os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError:
                pass

    def remove_tree(self, name: str) -> None:
        """Remove a folder and everything in it; of links inside, only the links."""
        self.inside(name).close()  # refuse pipes: rmtree would wait for a writer
        with self.naming(name):
            shutil.rmtree(name, dir_fd=self.fd)

    def clear_away(self, name: str) -> None:
        """Remove litter as `remove_tree` does, and leave what cannot be removed."""
        with suppress(OSError, CheckpointError):
            self.inside(name).close()
            shutil.rmtree(name, ignore_errors=True, dir_fd=self.fd)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this folder: nobody removed, renamed or replaced it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def sync(self) -> None:
        """Flush the folder's list of names to the disk, after a rename."""
        with self.naming("."):
            os.fsync(self.fd)

    def close(self) -> None:
        """Close the folder; closing twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Put the full path into errors, where the system was given only a name or a descriptor.

        A failure because `name` is a link becomes CheckpointError.
        """
        try:
            yield
        except OSError as error:
            if error.errno in _REFUSALS and self.links([name]):
                raise is_a_link(self.path / name) from error
            error.filename = str(self.path / name)
            del error.filename2  # None would be printed as a second name
            raise


def is_a_link(path: Path) -> CheckpointError:
    """Return the error for a link in the place of a file or folder that is to be written or removed."""
    return CheckpointError(f"{path} is a link, and asynctile writes and removes nothing through links; replace the link by its "
                           "target, or name another folder")


def _is_not_plain(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is not a regular file; remove it, or name another folder")


def part_of(name: str) -> str:
    """Return a unique temporary name beside `name` for writing it."""
    return f".{name}.{secrets.token_hex(4)}.part"


def write_whole(fd: int, content: bytes | memoryview) -> None:
    """Write all of `content`, in as many calls as the system needs."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left):]
