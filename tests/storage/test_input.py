"""Input that others may have written: read as it is or refused in a sentence, without waiting and within bounds."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asynctile.storage.input import DEPTH, DIGITS, LINE_NBYTES, SHOWN, open_file, parse_json, read_file, read_lines, shown

NUMBERS = st.integers(-(2**128), 2**128) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters() | st.sampled_from('\\"[]{}')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def is_utf8(text):
    """Return whether the text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@given(VALUES, st.booleans())
@example("\ud800", False)
@example("\ud800", True)
def test_json_is_read_as_python_reads_it(value, escaped):
    text = json.dumps(value, ensure_ascii=escaped)
    if is_utf8(text):
        assert parse_json(text.encode()) == value
    else:
        with pytest.raises(ValueError, match="is not UTF-8"):
            parse_json(text.encode("utf-8", "surrogatepass"))


def nested(depth):
    lists = depth // 2
    objects = depth - lists
    return b"[" * lists + b'{"]}[\\\\\\"{":' * objects + b"1" + b"}" * objects + b"]" * lists


def test_depth_is_bounded_whatever_strings_contain():
    assert parse_json(nested(DEPTH)) is not None
    with pytest.raises(ValueError, match=f"nested deeper than {DEPTH}"):
        parse_json(nested(DEPTH + 1))
    flat = json.dumps([['"[[[[{{{{\\'] * 5, {"[": "]"}] * 40).encode()
    assert parse_json(flat) == json.loads(flat)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b'["\\\\",' * 100_000, b'"\\"' + b"[" * 100_000])
def test_endless_nesting_is_one_sentence_from_a_deep_stack_too(content):
    def deep(n):
        if n:
            deep(n - 1)
            return
        with pytest.raises(ValueError, match=r"nested deeper|Unterminated"):
            parse_json(content)

    deep(sys.getrecursionlimit() // 2)


def test_nesting_is_found_across_the_pieces_of_a_search(monkeypatch):
    for piece in (1, 2, 7, 64):
        monkeypatch.setattr("asynctile.storage.input.PIECE_NBYTES", piece)
        assert parse_json(nested(DEPTH)) is not None
        with pytest.raises(ValueError, match="nested"):
            parse_json(nested(DEPTH + 1))


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "0." + "1" * 400, "1" * 5000, "1e" + "0" * 400])
def test_numbers_have_bounded_digits(number):
    for finite in (True, False):
        with pytest.raises(ValueError, match=f"number of {len(number)} characters, expected at most {DIGITS}"):
            parse_json(f'{{"n": {number}}}'.encode(), finite=finite)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_are_finite_unless_wanted(number):
    content = f"[{number}]".encode()
    with pytest.raises(ValueError, match=rf"the number {number}, expected a finite one"):
        parse_json(content)
    assert not math.isfinite(parse_json(content, finite=False)[0])


def test_input_that_is_not_text_is_refused():
    for content in ("{}".encode("utf-16"), b'"\xff"', b'"\xed\xa0\x80"'):
        with pytest.raises(ValueError, match="is not UTF-8"):
            parse_json(content)


@pytest.mark.timeout(10)
def test_only_regular_files_are_opened_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, why in [("pipe", "it is a pipe, expected a regular file"), ("socket", "No such device or address"),
                          (".", "Is a directory"), ("/dev/zero", "it is a device, expected a regular file"),
                          ("loop", "Too many levels of symbolic links"), ("none", "No such file"),
                          ("a\0b", "no file can have this name"), ("\ud800", "no file can have this name")]:  # fmt: skip
            if name == "loop":
                (tmp_path / "loop").symlink_to("loop")
            before = set(os.listdir("/proc/self/fd"))
            with pytest.raises(OSError, match=r".") as caught:
                open_file(tmp_path / name)
            assert why in caught.value.strerror
            assert caught.value.filename is not None
            assert set(os.listdir("/proc/self/fd")) == before


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link") == b"content"


def test_a_file_is_read_up_to_its_limit_and_not_beyond(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 1000)
    assert read_file(tmp_path / "file", 1000) == b"x" * 1000
    with pytest.raises(OSError, match=r"it has 1000 B, expected at most 999 B"):
        read_file(tmp_path / "file", 999)


def test_reading_a_growing_file_is_bounded_too(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x" * 1000)
    fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result((*fstat(fd)[:6], 0, *fstat(fd)[7:])))
    with pytest.raises(OSError, match="it has more than 999 B"):
        read_file(tmp_path / "file", 999)


def test_a_sparse_file_costs_no_memory(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match=r"it has 1\.00 TiB"):
            read_file(tmp_path / "file")
        with pytest.raises(OSError, match=r"line 1 has more than 64\.00 KiB"):
            list(read_lines(tmp_path / "file"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_lines_come_with_their_ends_and_a_limit(tmp_path):
    longest = b"x" * (LINE_NBYTES - 1) + b"\n"
    (tmp_path / "file").write_bytes(b"a\n\n" + longest + b"cut")
    assert list(read_lines(tmp_path / "file")) == [b"a\n", b"\n", longest, b"cut"]
    (tmp_path / "file").write_bytes(b"a\n" + b"x" + longest)
    lines = read_lines(tmp_path / "file")
    assert next(lines) == b"a\n"
    with pytest.raises(OSError, match=r"line 2 has more than 64\.00 KiB"):
        next(lines)


@given(st.text() | VALUES)
def test_a_shown_value_is_short_and_plain(value):
    text = shown(value)
    assert len(text) <= SHOWN + len(" ...")
    assert text.isprintable()
    assert "\ud800" not in shown("\ud800\0\x1b[31m")


def test_a_large_value_is_shown_in_short():
    assert len(shown("x" * 10**6)) < 100
    assert len(shown([{"shape": list(range(10**5))}] * 10**5)) < 1000
