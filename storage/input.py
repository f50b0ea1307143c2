"""Reading what others may have written: regular files of a bounded size, and JSON of a bounded shape.

Covers opening a file, reading it whole or line by line, decoding JSON, and showing what was found in a message. Nothing
here waits for a pipe, runs along a device without end, or takes more memory or stack than a limit allows. A file that
is refused raises OSError, like one that is missing: `strerror` says why, `filename` which. What a document must hold is
for its reader; `folder.py` turns these errors into those of a checkpoint.
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

#: A configuration or a record has some KiB, a shard index 100 bytes a tensor. Decoded, JSON takes up to 40 times as much.
DOCUMENT_NBYTES = 4 << 20
#: A line of metrics has some hundred bytes.
LINE_NBYTES = 64 << 10
#: Objects and lists in one another. What is read here has 5 at most; Python's own limit depends on who calls.
DEPTH = 64
#: Characters of a number. The state of a random generator (128 bits) has 39, a float64 25; 100 digits still make a float.
DIGITS = 100
#: Characters that are shown of a value: what is nested deep is many short pieces.
SHOWN = 600
#: Bytes that are read, or looked at, in one go.
_PIECE_NBYTES = 1 << 18
#: A pipe without a writer opens at once, to be looked at and refused; a terminal does not become ours.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}

_BREAK = re.compile(r"\s*\n\s*")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value: Any) -> str:
    """A name or a value out of a file, or an argument, for a message: escaped, cut, and in one line (an array has several)."""
    text = _BREAK.sub(" ", _short.repr(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def open_file(path: str | os.PathLike[str], *, limit: int | None = None) -> io.FileIO:
    """Open a regular file of at most `limit` bytes for reading, without a buffer.

    Raises OSError, with `strerror` and `filename`, if it is missing, of another kind or longer, or if no file can have
    such a name.
    """
    try:
        return open(path, "rb", buffering=0, opener=partial(_open, limit=limit))
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name", shown(os.fspath(path))) from error


def read_file(path: str | os.PathLike[str], limit: int = DOCUMENT_NBYTES) -> bytes:
    """The bytes of a regular file, at most `limit` of them. Raises OSError as `open_file` does."""
    with open_file(path, limit=limit) as file:
        pieces, left = [], limit + 1
        while left and (piece := file.read(min(left, _PIECE_NBYTES))):  # not the limit at once: most files are small
            pieces.append(piece)
            left -= len(piece)
    if not left:  # it grew since it was opened
        _refuse_length(path, f"more than {format_size(limit)}", limit)
    return b"".join(pieces)


def read_lines(path: str | os.PathLike[str], limit: int = LINE_NBYTES) -> Iterator[bytes]:
    """The lines of a regular file with their ends, one after another.

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
    """What JSON in UTF-8 says. Of equal names in an object the last counts, as everywhere in Python.

    Raises ValueError, one sentence, if it is no JSON, nested deeper than DEPTH, or has a number of more than DIGITS
    characters. With `finite` also for NaN, Infinity and numbers that a float64 cannot hold: only lines of metrics, and
    what a caller keeps in a checkpoint, may have those.
    """
    _check_depth(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from error
    real = _finite if finite else _float
    return json.loads(text, parse_int=_int, parse_float=real, parse_constant=real)


def _open(path: str, _: int, *, limit: int | None) -> int:
    """An opener for `open`: a descriptor of a regular file of at most `limit` bytes."""
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
    """ValueError if brackets outside of strings stand deeper than DEPTH.

    Not by catching RecursionError: how deep Python gets depends on its version and on the caller's own stack, and what
    it read at the brim would fail later, where it is compared, printed or written.
    """
    if content.count(b"[") + content.count(b"{") <= DEPTH:
        return
    import numpy as np  # here: what only names a value in a message does without

    # Without escapes every quote begins or ends a string, as long as it is JSON: the decoder stops where it is not.
    plain = np.frombuffer(content.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    depth, quotes = 0, 0
    for start in range(0, plain.size, _PIECE_NBYTES):
        piece = plain[start : start + _PIECE_NBYTES]
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
