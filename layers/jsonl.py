"""Texts in lines of JSON: one document a line, as data sets are passed on.

Covers `read_texts`. In which order files are read, and what stands between their documents, is text.py and tokens.py.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from asynctile.storage.input import parse_json, read_lines, shown

__all__ = ["LINE_NBYTES", "SUFFIX", "read_texts"]

SUFFIX = ".jsonl"
#: A longer line is refused: it is held whole, with what it says. The longest of books have some MiB.
LINE_NBYTES = 32 << 20
_SHOWN_FIELDS = 5


def read_texts(path: str | os.PathLike[str], field: str) -> Iterator[tuple[bytes, int]]:
    """The texts of a file's lines in UTF-8, each with the place in the file behind it. Nothing is kept of a line that is read.

    Lines that are blank, and texts that are empty, are left out. Half of a surrogate pair, which no UTF-8 has, becomes
    U+FFFD. Raises ValueError, naming file and line, for one that is no object of JSON, has no such field or no text in it,
    or is longer than LINE_NBYTES; OSError if the file cannot be read.
    """
    place = 0
    try:
        for number, line in enumerate(read_lines(path, LINE_NBYTES), 1):
            place += len(line)
            if not line.isspace() and (text := _text_of(line, field, f"{os.fspath(path)}, line {number},")):
                yield text, place
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ValueError(f"data {os.fspath(path)} cannot be read: {error.strerror}; make it several documents") from error
        raise


def _text_of(line: bytes, field: str, where: str) -> bytes:
    try:
        found = parse_json(line.rstrip(b"\r\n"), finite=False)
    except ValueError as error:
        # Its own line is always the first.
        why = f"{error.msg}: character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ValueError(f"data {where} is no JSON ({why}); expected an object with the field {shown(field)}; mend the "
                         "line, or remove it") from error
    if not isinstance(found, dict):
        raise ValueError(f"data {where} is {shown(found)}, expected an object with the field {shown(field)}; mend the line, or "
                         "remove it")
    if field not in found:
        raise ValueError(f"data {where} has no field {shown(field)}, {_names(found)}; name the field of the text with "
                         "--text-field")
    text = found[field]
    if not isinstance(text, str):
        raise ValueError(f"data {where} has {shown(text)} as {shown(field)}, expected a string; name the field of the text "
                         "with --text-field, or mend the line")
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()


def _names(found: dict[str, Any]) -> str:
    names = [shown(name) for name in list(found)[:_SHOWN_FIELDS]]
    return f"it has {', '.join(names)}{' and more' if len(found) > _SHOWN_FIELDS else ''}" if names else "it is empty"
