"""The file of a trace: a JSON array that is whole at every moment, so that it opens while it grows and behind a kill.

What stands in it is trace_events.py's, when it is written trace.py's. The array alone, and no object around it, since the
format asks of that form least: viewers take it without its end. Here the end is always there: each write begins at it and
brings another. Only a kill in the midst of a write can leave a file without, and that such a viewer still opens.
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
#: Bytes that are copied at once.
_PIECE = 1 << 20


class TraceFile:
    """At `path`, whatever stood there before, or without a name until `copy_to`. Blocks; OSError if it fails."""

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
        """Add events, each a JSON object on one line. If it fails the file is what it was before; OSError with its name."""
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
        """All of it so far, into another file. ValueError for this one."""
        with self._lock:
            target = _open(path, beside=self._fd)
            try:
                done = 0
                while piece := os.pread(self._fd, _PIECE, done):
                    done += _pwrite(target, piece, done, path)
            finally:
                os.close(target)

    def close(self) -> None:
        """It is complete. OSError if the system says only now that bytes did not get there."""
        with self._lock:
            if self._close.detach() is not None:
                try:
                    os.close(self._fd)
                except OSError as error:
                    error.filename = self.path
                    raise

    def _write(self, offset: int, text: bytes) -> int:
        """Text and the end behind it; returns the size of the file."""
        self.nbytes = offset + _pwrite(self._fd, text + _END, offset, self.path)
        return self.nbytes

    def _mend(self) -> None:
        """Behind a write that failed: the end where it was. Its place is allocated, so that also works on a full disk."""
        try:
            _pwrite(self._fd, _END, self._end, self.path)
            os.ftruncate(self._fd, self._end + len(_END))
        except OSError:
            pass  # the disk takes nothing at all: viewers do without


def _open(path: str, beside: int | None = None) -> int:
    """A regular file that is empty now. beside: of which it is to be a copy."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no regular file; name one that may be overwritten", path)
        if beside is not None and os.path.samestat(found, os.fstat(beside)):
            raise ValueError(f"{path} is the file that this trace is written to: stop_trace() completes it, or name another")
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _pwrite(descriptor: int, text: bytes, offset: int, path: str | None) -> int:
    """Write all of it; returns its length. OSError with the name of the file, which a write does not say."""
    done = 0
    try:
        while done < len(text):
            done += os.pwrite(descriptor, text[done:] if done else text, offset + done)
    except OSError as error:
        error.filename = path
        raise
    return done
