"""Lines of JSON, one document or one chat a line, as data sets are distributed.

Covers `read_texts`, and `read_objects` below it. text.py orders the files, tokens.py separates their documents. chats.py reads
chats.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from asynctile.storage.input import parse_json, read_lines, shown

__all__ = ["LINE_NBYTES", "SUFFIX", "names_in", "read_objects", "read_texts", "without_halves"]

SUFFIX = ".jsonl"
#: A longer line is refused, because a line and its parsed content are held whole. The longest books have some MiB.
LINE_NBYTES = 32 << 20
_SHOWN_FIELDS = 5
_HALVES = re.compile("[\ud800-\udfff]")


def read_texts(path: str | os.PathLike[str], field: str) -> Iterator[tuple[bytes, int]]:
    """Yield the texts of a file's lines in UTF-8, each with the file position after it. Lines are not kept.

    Blank lines and empty texts are left out. Half a surrogate pair, which UTF-8 cannot encode, becomes U+FFFD. ValueError,
    naming file and line, for a line that is not a JSON object, has no such field or no string in it, or is longer than
    LINE_NBYTES. OSError if the file cannot be read.
    """
    for found, where, place in read_objects(path, field):
        if text := _text_of(found, field, where):
            yield text, place


def read_objects(path: str | os.PathLike[str], field: str) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Yield the objects of a file's lines, each with words for its line and the file position after it.

    field: what the objects are expected to have, for messages. Errors are those of `read_texts`, but fields are not looked at.
    """
    place = 0
    try:
        for number, line in enumerate(read_lines(path, LINE_NBYTES), 1):
            place += len(line)
            if not line.isspace():
                where = f"{os.fspath(path)}, line {number},"
                yield _object_of(line, field, where), where, place
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ValueError(f"data {os.fspath(path)} cannot be read: {error.strerror}; split the line into several "
                             "documents") from error
        raise


def without_halves(text: str) -> str:
    """Return a text with U+FFFD in place of each half of a surrogate pair, which no tokenizer takes."""
    return _HALVES.sub("\ufffd", text)


def _object_of(line: bytes, field: str, where: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(line.rstrip(b"\r\n"), finite=False)
    except ValueError as error:
        # The parser saw a single line, so its line number is always 1.
        why = f"{error.msg}: character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ValueError(f"data {where} is not valid JSON ({why}); expected an object with the field {shown(field)}; correct "
                         "the line, or remove it") from error
    if not isinstance(found, dict):
        raise ValueError(f"data {where} is {shown(found)}, expected an object with the field {shown(field)}; correct the "
                         "line, or remove it")
    return found


def _text_of(found: dict[str, Any], field: str, where: str) -> bytes:
    if field not in found:
        raise ValueError(f"data {where} has no field {shown(field)} ({names_in(found)}); name the field that holds the text "
                         "with --text-field")
    text = found[field]
    if not isinstance(text, str):
        raise ValueError(f"data {where} has {shown(text)} as {shown(field)}, expected a string; name the field that holds "
                         "the text with --text-field, or correct the line")
    try:
        return text.encode()
    except UnicodeEncodeError:
        return without_halves(text).encode()


def names_in(found: dict[str, Any]) -> str:
    """Return which fields an object has, for a message."""
    names = [shown(name) for name in list(found)[:_SHOWN_FIELDS]]
    return f"it has {', '.join(names)}{' and more' if len(found) > _SHOWN_FIELDS else ''}" if names else "it is empty"
