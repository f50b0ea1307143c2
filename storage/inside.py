"""A folder held open, and what is done in it by plain names: nothing is written or removed through a link.

Covers `Folder`. Where its path leads is settled once, when it is opened: links in a path that somebody typed are followed.
From then on the folder is its descriptor, wherever its name goes, and what stands in it is named by one plain name each,
which is never followed. How a folder takes another's place is `beside.py`; files and folders by their path are `folder.py`.
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
#: of <linux/fs.h>
_RENAME_EXCHANGE = 2
#: What a system says of a link that stands where none is followed: to a file or folder opened (EMLINK: FreeBSD), or made new.
_REFUSALS = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.EEXIST)


class Folder:
    """A context manager; `path` is how it was named, for messages and for reading.

    Every method raises OSError with the whole path of what failed, and CheckpointError for a link where a file or folder of
    its own was to be opened.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The folder that `path` leads to, through links too."""
        return cls(Path(path), os.open(path, _FOLDER))

    def inside(self, name: str, *, make: bool = False) -> Folder:
        """A folder in this one; with `make`, made if it is not there."""
        with self.naming(name):
            if make and self.stat(name) is None:
                os.mkdir(name, dir_fd=self.fd)
                self.sync()
            return Folder(self.path / name, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.fd))

    def names(self) -> list[str]:
        """What stands in it, in no order."""
        with self.naming("."):
            # Not the descriptor itself: its copies share a position, and two threads may list at a time.
            fd = os.open(".", _FOLDER, dir_fd=self.fd)
            try:
                return os.listdir(fd)
            finally:
                os.close(fd)

    def stat(self, name: str) -> os.stat_result | None:
        """Of the name itself, never of what a link leads to; None: there is none."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def links(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are links."""
        return [name for name in names if (found := self.stat(name)) is not None and stat.S_ISLNK(found.st_mode)]

    def check_plain(self, names: Iterable[str]) -> None:
        """CheckpointError for the first of `names` that is there and no plain file."""
        for name in names:
            found = self.stat(name)
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise is_a_link(self.path / name) if stat.S_ISLNK(found.st_mode) else _is_not_plain(self.path / name)

    def make(self, name: str) -> None:
        """Make a folder whose name is free."""
        with self.naming(name):
            os.mkdir(name, dir_fd=self.fd)

    def new_file(self, name: str) -> int:
        """A descriptor to write a file whose name is free."""
        with self.naming(name):
            return os.open(name, _NEW, 0o666, dir_fd=self.fd)

    def append_file(self, name: str) -> int:
        """A descriptor to write behind the end of a plain file, which is made if it is not there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self.naming(name):
            fd = os.open(name, flags, 0o666, dir_fd=self.fd)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise _is_not_plain(self.path / name)
            return fd

    def write(self, name: str, content: bytes) -> None:
        """Write a small file whole: beside its place, to the disk, then renamed. It takes the place of a link, if one stands
        there, and not of what the link leads to.
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
        """A name to write a file under, which then becomes `name`; on an error it is removed."""
        part = part_of(name)
        try:
            yield part
            self.put_in_place(part, name)
        except BaseException:
            self.remove(part)
            raise

    def put_in_place(self, part: str, name: str) -> None:
        """Give a file that is on the disk its name."""
        with self.naming(name):
            os.replace(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        self.sync()

    def rename(self, name: str, to: str) -> None:
        """Give a name another; a link keeps what it leads to."""
        with self.naming(name):
            os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def exchange(self, one: str, other: str) -> bool:
        """Swap two names in one step; False where the C library, the system or the file system cannot."""
        try:
            renameat2 = ctypes.CDLL(None).renameat2
        except AttributeError:
            return False
        # Whatever it failed of, the caller tries otherwise, and says so if it was more than not being able.
        return bool(renameat2(self.fd, os.fsencode(one), self.fd, os.fsencode(other), _RENAME_EXCHANGE) == 0)

    def remove(self, name: str) -> None:
        """Remove a file, or a link and not what it leads to; nothing if there is none."""
        with self.naming(name):
            try:
                os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError:
                pass

    def remove_tree(self, name: str) -> None:
        """Remove a folder and all in it, of links in it the links."""
        self.inside(name).close()  # rmtree would wait for the writer of a pipe
        with self.naming(name):
            shutil.rmtree(name, dir_fd=self.fd)

    def clear_away(self, name: str) -> None:
        """`remove_tree` of what is litter: what cannot be removed stays."""
        with suppress(OSError, CheckpointError):
            self.inside(name).close()
            shutil.rmtree(name, ignore_errors=True, dir_fd=self.fd)

    def is_in_place(self) -> bool:
        """Whether the path still leads to this folder: nobody has removed or renamed it, or put another there."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def sync(self) -> None:
        """Bring the list of names to the disk, which a rename changed."""
        with self.naming("."):
            os.fsync(self.fd)

    def close(self) -> None:
        """Let the folder go; twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Errors with the path that a reader knows, where the system was given one name only, or a descriptor."""
        try:
            yield
        except OSError as error:
            if error.errno in _REFUSALS and self.links([name]):
                raise is_a_link(self.path / name) from error
            error.filename = str(self.path / name)
            del error.filename2  # None would be told as the second name
            raise


def is_a_link(path: Path) -> CheckpointError:
    """The error for a link where a file or a folder is to be written or removed."""
    return CheckpointError(f"{path} is a link, and nothing is written or removed through one here; put what it leads to in its "
                           "place, or name another folder")


def _is_not_plain(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is no plain file, expected one or none; remove it, or name another folder")


def part_of(name: str) -> str:
    """A name beside `name` to write it under."""
    return f".{name}.{secrets.token_hex(4)}.part"


def write_whole(fd: int, content: bytes | memoryview) -> None:
    """Write all of `content`, in as many parts as the system makes of it."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left):]
