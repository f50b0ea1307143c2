"""The file of a trace: a JSON array that is whole at every moment, so that it opens while it grows and after a kill.

trace_events.py says what is in it, trace.py when it is written. It is a bare array, with no object around it, because
the format requires least of that form: viewers accept it without its closing bracket. Here the closing bracket is
always there, since each write overwrites it and ends with another. Only a kill in the middle of a write can lose it,
and viewers still open such a file.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
import weakref
from collections.abc import Sequence

_END = b"\n]\n"
#: Bytes copied at once.
_PIECE = 1 << 20


class TraceFile:
    """The file at `path`, replacing anything there, or a file without a name until `copy_to`. Blocks; OSError if it fails."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.nbytes = 0
        if path is None:
            self._fd, name = tempfile.mkstemp(prefix="asynctile-trace-")
            os.unlink(name)
        else:
            self._fd = _open(path)
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False
        self._lock = threading.Lock()
        self._end = self._write(0, b"[") - len(_END)
        self._is_empty = True

    def append(self, events: Sequence[str]) -> None:
        """Add events, each a JSON object on one line. If that fails, the file stays as it was; OSError with its name."""
        if not events:
            return
        with self._lock:
            if self.path is not None and not os.fstat(self._fd).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "was removed while it was written", self.path)
            begin = "\n" if self._is_empty else ",\n"
            try:
                self._end = self._write(self._end, (begin + ",\n".join(events)).encode()) - len(_END)
            except OSError:
                self._mend()
                raise
            self._is_empty = False

    def copy_to(self, path: str) -> None:
        """Copy everything so far to another file. ValueError for this file itself."""
        with self._lock:
            target = _open(path, beside=self._fd)
            try:
                done = 0
                while piece := os.pread(self._fd, _PIECE, done):
                    done += _pwrite(target, piece, done, path)
            finally:
                os.close(target)

    def close(self) -> None:
        """Complete the file. OSError if the system reports only now that bytes were not written."""
        with self._lock:
            if self._close.detach() is not None:
                try:
                    os.close(self._fd)
                except OSError as error:
                    error.filename = self.path
                    raise

    def _write(self, offset: int, text: bytes) -> int:
        """Write text and the closing bracket at `offset`; return the size of the file."""
        self.nbytes = offset + _pwrite(self._fd, text + _END, offset, self.path)
        return self.nbytes

    def _mend(self) -> None:
        """Put the closing bracket back after a failed write. Its place is allocated, so this works on a full disk, too."""
        try:
            _pwrite(self._fd, _END, self._end, self.path)
            os.ftruncate(self._fd, self._end + len(_END))
        except OSError:
            pass  # the disk takes nothing at all; viewers open the file without the bracket


def _open(path: str, beside: int | None = None) -> int:
    """Open the regular file `path` and empty it; OSError if it is no regular file.

    beside: descriptor of a file that `path` must not be, the one to be copied; ValueError if it is.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file; name one that may be overwritten", path)
        if beside is not None and os.path.samestat(found, os.fstat(beside)):
            raise ValueError(f"{path} is the file that this trace is written to: stop_trace() completes it, or name another")
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _pwrite(descriptor: int, text: bytes, offset: int, path: str | None) -> int:
    """Write all of `text`; return its length. OSError with the name of the file, which a plain write leaves out."""
    done = 0
    try:
        while done < len(text):
            done += os.pwrite(descriptor, text[done:] if done else text, offset + done)
    except OSError as error:
        error.filename = path
        raise
    return done
