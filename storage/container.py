"""The spill file itself: one nameless file in a folder on NVMe, read and written past the page cache.

Covers the system calls, and the problems that a folder can have. A nameless file disappears with its process, however the
process ends. The lock sits on the folder's own descriptor, so no lock file can be left behind.

Retries, checksums and counters are storage/spill.py, the bookkeeping of blocks is storage/blocks.py, and a file that fails on
purpose is storage/faults.py.
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

#: Offsets, lengths and addresses of transfers are multiples of this: O_DIRECT requires it on every usual disk.
ALIGNMENT = 4096

#: The file's name on file systems where it needs one for a moment. One name is enough, because the folder is locked. A file
#: that a killed process left under it is taken over.
_NAME = ".asynctile.spill"
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def aligned_array(nbytes: int) -> np.ndarray:
    """Return `nbytes` fresh bytes, all zero, at an address that O_DIRECT accepts."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8, nbytes)


class RawFile(Protocol):
    """A file as the kernel shows it: transfers may be short, and errors are OSError.

    Any thread may call it at any time before `close`.
    """

    #: The file's folder, for messages.
    path: str
    #: Whether transfers go past the page cache, and so must be aligned.
    direct: bool

    def preadv(self, views: Sequence[np.ndarray], offset: int) -> int:
        """Fill `views` (1-D, uint8) from `offset`; return the number of bytes read, 0 at the end of the file."""

    def pwritev(self, views: Sequence[np.ndarray], offset: int) -> int:
        """Write `views` (1-D, uint8) at `offset`; return the number of bytes written."""

    def allocate(self, nbytes: int) -> None:
        """Make the file at least `nbytes` long, with disk space behind all of it; TierError if the disk has too little."""

    def truncate(self, nbytes: int) -> None:
        """Cut the file to `nbytes`."""

    def close(self) -> None:
        """Close the file; closing twice is fine.

        No transfer may be running: the system could already have given the descriptor to another file.
        """


class ContainerFile:
    """The spill file of one engine, in `folder`, which must exist. Raises TierError if the file cannot be made."""

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
                f"cannot make a file in spill folder {self.path}: {error.strerror}; {format_size(free_nbytes(self.path))} are "
                "free; name a writable folder on a local disk"
            ) from error
        except BaseException:
            self.close()
            raise

    def _probe(self) -> bool:
        """Write and read 4096 bytes, first past the page cache: some file systems accept the flag but not the transfer.

        Return whether transfers can go past the page cache. Raises OSError if neither way works.
        """
        pattern, found = aligned_array(ALIGNMENT), aligned_array(ALIGNMENT)
        pattern[:] = 0xA5
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        for direct in (os.O_DIRECT, 0):
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | direct)
                written = self.pwritev([pattern], 0)
                if written == self.preadv([found], 0) == ALIGNMENT and np.array_equal(pattern, found):
                    os.ftruncate(self._fd, 0)
                    return bool(direct)
            except OSError as error:
                if not direct or error.errno in _FULL:
                    raise
        raise OSError(errno.EIO, "4096 bytes read back differ from the bytes written")

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._fd

    def preadv(self, views: Sequence[np.ndarray], offset: int) -> int:
        moved = os.preadv(self._fd, views, offset)  # type: ignore[arg-type]
        self._drop(offset, moved)
        return moved

    def pwritev(self, views: Sequence[np.ndarray], offset: int) -> int:
        moved = os.pwritev(self._fd, views, offset)  # type: ignore[arg-type]
        self._drop(offset, moved)
        return moved

    def _drop(self, offset: int, nbytes: int) -> None:
        """Ask the system not to keep the bytes in the page cache, if they went through it: the tier exists to save that RAM."""
        if not self.direct and nbytes:
            os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def allocate(self, nbytes: int) -> None:
        more = nbytes - self.nbytes
        if more <= 0:
            return
        # Check first: an allocation that fails half way fills the disk for everybody else for a moment.
        if more > free_nbytes(self.path):
            raise self._no_room(more, "too few")
        try:
            try:
                os.posix_fallocate(self._fd, self.nbytes, more)
            except OSError as error:
                os.ftruncate(self._fd, self.nbytes)  # give back the part that it got before it failed
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
            f"{format_size(free)} ({free} bytes) are free: {why}; free some space, name another folder, or lower spill_limit"
        )

    def truncate(self, nbytes: int) -> None:
        os.ftruncate(self._fd, nbytes)
        self.nbytes = min(self.nbytes, nbytes)

    def close(self) -> None:
        # Close the file before the lock, so that the next engine in this folder finds the disk space free.
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder = -1


#: Files that a forked child inherits and closes at once. Otherwise it would keep the folder locked and the disk full as long as
#: it lives.
_open_files: weakref.WeakSet[ContainerFile] = weakref.WeakSet()


def _close_inherited() -> None:
    for file in _open_files:
        file.close()


os.register_at_fork(after_in_child=_close_inherited)


def free_nbytes(path: str) -> int:
    """Return the bytes that an ordinary user may still write to the disk of `path`; 0 if that is unknown."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


def _lock(path: str) -> int:
    """Return a descriptor of the folder, locked until it is closed."""
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
    """Return a descriptor of a new file that has no name, or loses its name at once."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600, dir_fd=folder)
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
