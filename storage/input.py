"""Reading files that others may have written: regular files of bounded size, and JSON of bounded depth.

Covers opening a file, reading it whole or line by line, decoding JSON, and showing foreign values in a message. Nothing here
waits for a pipe, reads a device without end, or takes more memory or stack than a limit allows. A file that is refused raises
OSError, like a missing file: `strerror` gives the reason, `filename` the file.

Each reader checks the content of its documents; `folder.py` turns these errors into those of a checkpoint.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import reprlib
import stat
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

from asynctile.storage.sizes import format_size

__all__ = ["DOCUMENT_NBYTES", "LINE_NBYTES", "open_file", "parse_json", "read_file", "read_lines", "shown"]

#: The largest document. A configuration has some KiB, a shard index 100 bytes per tensor; decoding takes up to 40 times that.
DOCUMENT_NBYTES = 4 << 20
#: The longest line. A line of metrics has some hundred bytes.
LINE_NBYTES = 64 << 10
#: The deepest nesting of objects and lists. Our own files need 5; Python's own limit depends on the caller's stack.
DEPTH = 64
#: The most characters of a number. The state of a random generator (128 bits) has 39, a float64 has 25, and 100 digits still
#: fit a float.
DIGITS = 100
#: The most characters of a value that a message shows: a deeply nested value has many short pieces.
SHOWN = 600
#: Bytes that are read, or scanned, at a time.
PIECE_NBYTES = 1 << 18
#: Flags for opening a file. A pipe without a writer opens at once (and is refused), and a terminal does not become the
#: process's controlling terminal.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}

_BREAK = re.compile(r"\s*\n\s*")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value: Any) -> str:
    """Return a foreign name or value for a message: escaped, cut to SHOWN characters, in one line."""
    text = _BREAK.sub(" ", _short.repr(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def open_file(path: str | os.PathLike[str], *, limit: int | None = None) -> io.FileIO:
    """Open a regular file of at most `limit` bytes for reading, without a buffer.

    Raises OSError, with `strerror` and `filename`, if the file is missing, of another kind or longer, or if the name is not
    valid for a file.
    """
    try:
        return open(path, "rb", buffering=0, opener=partial(_open, limit=limit))
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name", shown(os.fspath(path))) from error


def read_file(path: str | os.PathLike[str], limit: int = DOCUMENT_NBYTES) -> bytes:
    """Return the bytes of a regular file, at most `limit` of them. Raises OSError as `open_file` does."""
    with open_file(path, limit=limit) as file:
        pieces, left = [], limit + 1
        while left and (piece := file.read(min(left, PIECE_NBYTES))):  # not `limit` at once: most files are small
            pieces.append(piece)
            left -= len(piece)
    if not left:  # the file grew after it was opened
        _refuse_length(path, f"more than {format_size(limit)}", limit)
    return b"".join(pieces)


def read_lines(path: str | os.PathLike[str], limit: int = LINE_NBYTES) -> Iterator[bytes]:
    """Yield the lines of a regular file, each with its line end.

    Raises OSError as `open_file` does, and for a line of more than `limit` bytes.
    """
    with io.BufferedReader(open_file(path)) as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                raise OSError(errno.EFBIG, f"line {number} has more than {format_size(limit)}", os.fspath(path))
            yield line


def parse_json(content: bytes, *, finite: bool = True) -> Any:
    """Decode JSON in UTF-8. If an object repeats a name, the last value wins, as everywhere in Python.

    Raises ValueError, in one sentence, if the content is not JSON, is nested deeper than DEPTH, or has a number of more than
    DIGITS characters. With `finite`, NaN, Infinity and numbers beyond a float64 are errors too: only lines of metrics, and data
    that a caller keeps in a checkpoint, may contain them.
    """
    _check_depth(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
    real = _finite if finite else _float
    return json.loads(text, parse_int=_int, parse_float=real, parse_constant=real)


def _open(path: str, _: int, *, limit: int | None) -> int:
    """Return a descriptor of a regular file of at most `limit` bytes; an opener for `open`."""
    descriptor = os.open(path, _FLAGS)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "of another kind")
            raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", path)
        if limit is not None and found.st_size > limit:
            _refuse_length(path, format_size(found.st_size), limit)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_length(path: str | os.PathLike[str], found: str, limit: int) -> NoReturn:
    raise OSError(errno.EFBIG, f"it has {found}, expected at most {format_size(limit)}", os.fspath(path))


def _check_depth(content: bytes) -> None:
    """Raise ValueError if brackets outside of strings are nested deeper than DEPTH.

    The way not taken: catching RecursionError. How deep Python gets depends on its version and on the caller's own stack, and a
    value read just below that limit would fail later, when it is compared, printed or written.
    """
    if content.count(b"[") + content.count(b"{") <= DEPTH:
        return
    import numpy as np  # here, because a caller that only needs `shown` does without numpy

    # Without escapes every quote begins or ends a string, as long as the content is JSON; the decoder stops where it is not.
    plain = np.frombuffer(content.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    depth, quotes = 0, 0
    for start in range(0, plain.size, PIECE_NBYTES):
        piece = plain[start : start + PIECE_NBYTES]
        strings = np.cumsum(piece == ord('"'), dtype=np.int64) + quotes
        kind = piece & 0xDF  # [ and { differ in this bit, ] and } too
        steps = np.where(strings % 2, 0, (kind == ord("[")).astype(np.int8) - (kind == ord("]")).astype(np.int8))
        depths = np.cumsum(steps, dtype=np.int64) + depth
        if depths.max() > DEPTH:
            raise ValueError(f"it is nested deeper than {DEPTH}")
        depth, quotes = int(depths[-1]), int(strings[-1])


def _int(text: str) -> int:
    _check_digits(text)
    return int(text)


def _float(text: str) -> float:
    _check_digits(text)
    return float(text)


def _finite(text: str) -> float:
    number = _float(text)
    if not math.isfinite(number):
        raise ValueError(f"it has the number {text}, expected a finite one")
    return number


def _check_digits(text: str) -> None:
    if len(text) > DIGITS:
        raise ValueError(f"it has a number of {len(text)} characters, expected at most {DIGITS}")
