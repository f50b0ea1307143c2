"""The spill file: one file without a name in a folder on NVMe, read and written past the page cache.

Covers the system calls and what can be wrong with a folder. A file without a name is gone when its process is, however that
ended. Retries, checksums and counters are storage/spill.py, which bytes belong to whom is storage/blocks.py, a file that
fails on purpose is storage/faults.py. The folder is locked by its own descriptor, so there is no lock file to be left behind.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from asynctile.storage.errors import TierError
from asynctile.storage.sizes import format_size

__all__ = ["ALIGNMENT", "ContainerFile", "RawFile", "aligned_array"]

#: Offsets, lengths and addresses of transfers are multiples of this: what O_DIRECT asks for on every usual disk.
ALIGNMENT = 4096

#: What the system may lack (macOS has none of the three) is 0, and left out.
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_TMPFILE: int = getattr(os, "O_TMPFILE", 0)
#: Where the file must have a name for a moment. One name is enough, because the folder is locked; one that a killed process
#: left is taken over.
_NAME = ".asynctile.spill"
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def aligned_array(nbytes: int) -> np.ndarray:
    """Fresh bytes, all zero, at an address that O_DIRECT takes."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8, nbytes)


class RawFile(Protocol):
    """A file as the kernel shows it: transfers may be short, and raise OSError. Any thread may call any time before close."""

    #: Where the file is, for messages.
    path: str
    #: Whether transfers pass the page cache, and so must be aligned.
    direct: bool

    def preadv(self, views: Sequence[np.ndarray], offset: int) -> int:
        """Fill `views` (1-D, uint8) from `offset`; how many bytes, 0 at the end of the file."""

    def pwritev(self, views: Sequence[np.ndarray], offset: int) -> int:
        """Write `views` at `offset`; how many bytes."""

    def allocate(self, nbytes: int) -> None:
        """Make the file at least `nbytes` long, with the disk space behind it; TierError when there is not so much."""

    def truncate(self, nbytes: int) -> None:
        """Cut the file to `nbytes`."""

    def close(self) -> None:
        """Let the file go; twice is fine. No transfer may be running: its descriptor may be another file's by then."""


class ContainerFile:
    """The spill file of one engine, in `folder`, which must exist. Raises TierError if it cannot be."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = os.fspath(folder)
        self.direct = False
        self.nbytes = 0
        self._fd = self._folder = -1
        _open_files.add(self)
        try:
            self._folder = _lock(self.path)
            self._fd = _create(self._folder)
            self.direct = self._probe()
        except OSError as error:
            self.close()
            raise TierError(
                f"spill folder {self.path} takes no file: {error.strerror}; {format_size(free_nbytes(self.path))} are free; "
                "name a folder on a local disk that can be written"
            ) from error
        except BaseException:
            self.close()
            raise

    def _probe(self) -> bool:
        """Write and read 4096 bytes for real, first past the page cache; some file systems take the flag and not the bytes.

        Returns whether the page cache is passed. Raises OSError if it works in neither way.
        """
        pattern, found = aligned_array(ALIGNMENT), aligned_array(ALIGNMENT)
        pattern[:] = 0xA5
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        for direct in (_DIRECT, 0) if _DIRECT else (0,):
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | direct)
                written = self.pwritev([pattern], 0)
                if written == self.preadv([found], 0) == ALIGNMENT and np.array_equal(pattern, found):
                    os.ftruncate(self._fd, 0)
                    return bool(direct)
            except OSError as error:
                if not direct or error.errno in _FULL:
                    raise
        raise OSError(errno.EIO, "4096 bytes written were not the same when read")

    def preadv(self, views: Sequence[np.ndarray], offset: int) -> int:
        moved = _preadv(self._fd, views, offset)
        self._drop(offset, moved)
        return moved

    def pwritev(self, views: Sequence[np.ndarray], offset: int) -> int:
        moved = _pwritev(self._fd, views, offset)
        self._drop(offset, moved)
        return moved

    def _drop(self, offset: int, nbytes: int) -> None:
        """Through the page cache, ask that the bytes do not stay there: that RAM is what the tier was made to spare."""
        if not self.direct and nbytes and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def allocate(self, nbytes: int) -> None:
        more = nbytes - self.nbytes
        if more <= 0:
            return
        # Asked first, because an allocation that fails half way has filled the disk of everybody else for a moment.
        if more > free_nbytes(self.path):
            raise self._no_room(more, "too few")
        try:
            if hasattr(os, "posix_fallocate"):
                try:
                    os.posix_fallocate(self._fd, self.nbytes, more)
                except OSError as error:
                    os.ftruncate(self._fd, self.nbytes)  # what it got before it failed
                    if error.errno not in _NO_FALLOCATE:
                        raise
            os.ftruncate(self._fd, nbytes)
        except OSError as error:
            raise self._no_room(more, error.strerror or str(error)) from error
        self.nbytes = nbytes

    def _no_room(self, more: int, why: str) -> TierError:
        free = free_nbytes(self.path)
        return TierError(
            f"the spill file in {self.path} needs {format_size(more)} ({more} bytes) more on the disk, where "
            f"{format_size(free)} ({free} bytes) are free: {why}; free some, name another folder, or lower spill_limit"
        )

    def truncate(self, nbytes: int) -> None:
        os.ftruncate(self._fd, nbytes)
        self.nbytes = min(self.nbytes, nbytes)

    def close(self) -> None:
        # The file before the lock: whoever gets the folder next finds the disk space back.
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder = -1


#: What a forked child inherits, and lets go at once: it would keep the folder locked and the disk full for as long as it lives.
_open_files: weakref.WeakSet[ContainerFile] = weakref.WeakSet()


def _close_inherited() -> None:
    for file in _open_files:
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def free_nbytes(path: str) -> int:
    """Bytes that an ordinary user may still write on the disk of `path`; 0 if nobody can tell."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


def _lock(path: str) -> int:
    """A descriptor of the folder, locked until it is closed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise TierError(f"spill folder {path} does not exist; create it, or name one that does") from None
    except NotADirectoryError:
        raise TierError(f"spill folder {path} is not a folder; name a folder on a local disk") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise TierError(
            f"spill folder {path} is in use by another engine; close that one, or give each engine a folder of its own"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _create(folder: int) -> int:
    """A file that has no name, or loses it at once."""
    if _TMPFILE:
        try:
            return os.open(".", _TMPFILE | os.O_RDWR | os.O_EXCL, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
    fd = os.open(_NAME, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        os.unlink(_NAME, dir_fd=folder)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _pread(fd: int, views: Sequence[np.ndarray], offset: int) -> int:
    data = os.pread(fd, views[0].nbytes, offset)
    views[0][: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def _pwrite(fd: int, views: Sequence[np.ndarray], offset: int) -> int:
    return os.pwrite(fd, views[0].data, offset)


_preadv = getattr(os, "preadv", _pread)
_pwritev = getattr(os, "pwritev", _pwrite)
