"""Texts in lines of JSON, one document a line, as data sets are distributed.

Covers `read_texts`. text.py orders the files, tokens.py separates their documents.
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
#: A longer line is refused, because a line and its parsed content are held whole. The longest books have some MiB.
LINE_NBYTES = 32 << 20
_SHOWN_FIELDS = 5


def read_texts(path: str | os.PathLike[str], field: str) -> Iterator[tuple[bytes, int]]:
    """Yield the texts of a file's lines in UTF-8, each with the file position after it. Lines are not kept.

    Blank lines and empty texts are left out. Half a surrogate pair, which UTF-8 cannot encode, becomes U+FFFD. ValueError,
    naming file and line, for a line that is not a JSON object, has no such field or no string in it, or is longer than
    LINE_NBYTES. OSError if the file cannot be read.
    """
    place = 0
    try:
        for number, line in enumerate(read_lines(path, LINE_NBYTES), 1):
            place += len(line)
            if not line.isspace() and (text := _text_of(line, field, f"{os.fspath(path)}, line {number},")):
                yield text, place
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ValueError(f"data {os.fspath(path)} cannot be read: {error.strerror}; split the line into several "
                             "documents") from error
        raise


def _text_of(line: bytes, field: str, where: str) -> bytes:
    try:
        found = parse_json(line.rstrip(b"\r\n"), finite=False)
    except ValueError as error:
        # The parser saw a single line, so its line number is always 1.
        why = f"{error.msg}: character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ValueError(f"data {where} is not valid JSON ({why}); expected an object with the field {shown(field)}; correct "
                         "the line, or remove it") from error
    if not isinstance(found, dict):
        raise ValueError(f"data {where} is {shown(found)}, expected an object with the field {shown(field)}; correct the "
                         "line, or remove it")
    if field not in found:
        raise ValueError(f"data {where} has no field {shown(field)} ({_names(found)}); name the field that holds the text "
                         "with --text-field")
    text = found[field]
    if not isinstance(text, str):
        raise ValueError(f"data {where} has {shown(text)} as {shown(field)}, expected a string; name the field that holds "
                         "the text with --text-field, or correct the line")
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()


def _names(found: dict[str, Any]) -> str:
    names = [shown(name) for name in list(found)[:_SHOWN_FIELDS]]
    return f"it has {', '.join(names)}{' and more' if len(found) > _SHOWN_FIELDS else ''}" if names else "it is empty"
