"""The kind of a file by its first bytes, and its name in messages where text was expected."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers.data_source import open_source
from asynctile.layers.file_kind import kind_of


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text")
    return file.getvalue()


def of_numpy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452")


@pytest.mark.parametrize(("content", "what", "way_out"), [
    (gzip.compress(b"some text", mtime=1), "gzip", "gunzip"), (zipped(), "zip", "unzip"),
    (bz2.compress(b"some text"), "bzip2", "bunzip2"), (lzma.compress(b"some text"), "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd\x24", "Zstandard", "unzstd"), (b"PAR1\x15\x04\x15\0\x15", "a Parquet file", r"to a \.jsonl"),
    (of_numpy(), "a NumPy array", r"to a \.jsonl"), (PNG, "a PNG picture", "name a text file"),
    (b"%PDF-1.7\n%", "a PDF", "name a text file"),
    ("text".encode("utf-16"), "text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    ("text".encode("utf-16-le"), "text in UTF-16", "iconv -f UTF-16"), ("text".encode("utf-16-be"), "text in UTF-16", "iconv"),
    ("text".encode("utf-32"), "text in UTF-32", "iconv -f UTF-32"),
    (b"ab\0cd", r"binary \(byte 2 is zero\)", "name a text file"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
@pytest.mark.parametrize("name", ["a", "a.txt", "a.jsonl"])
def test_a_file_that_is_not_text_is_refused_by_its_kind(tmp_path: Path, name: str, content: bytes, what: str,
                                                         way_out: str) -> None:  # fmt: skip
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^data {tmp_path / name} is {what}, expected text; .*{way_out}"):
        open_source(tmp_path / name)


@given(st.text(st.characters(exclude_characters="\0")))
def test_any_utf8_text_without_zeros_is_text(text: str) -> None:
    assert kind_of(text.encode("utf-8", "replace")) is None


def test_letters_that_may_begin_a_binary_file_are_text() -> None:
    for content in (b"PAR1 of the course", b"GIF89 is a format", b"RIFF", b"BZh is bzip2's", b"PK and more", b""):
        assert kind_of(content) is None
