"""The kind of a file by its first bytes, for readers that expect text.

Covers `kind_of`. text.py reads text, jsonl.py reads lines of JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HEAD_NBYTES", "FileKind", "kind_of"]

#: how many bytes `kind_of` looks at
HEAD_NBYTES = 8192


@dataclass(frozen=True)
class FileKind:
    """A kind of file that is not text: its name, to be used in a sentence, and what to do about it."""

    name: str
    way_out: str


_NAME_TEXT = "name a text file, a .jsonl or a folder of them"


def _packed(name: str, command: str) -> FileKind:
    return FileKind(name, f"unpack it first, for example with {command}")


def _table(name: str) -> FileKind:
    return FileKind(name, "convert its texts to a .jsonl file, one object a line, and name that file")


def _other(name: str) -> FileKind:
    return FileKind(name, _NAME_TEXT)


def _wide(name: str) -> FileKind:
    return FileKind(f"text in {name}", f"convert it to UTF-8, for example with iconv -f {name} -t UTF-8")


#: Longer signatures come before their prefixes. Each contains a byte that text never has, or starts as no text does.
_SIGNATURES = (
    (b"\x1f\x8b", _packed("gzip", "gunzip")), (b"PK\x03\x04", _packed("zip", "unzip")),
    (b"PK\x05\x06", _packed("zip", "unzip")), (b"\x28\xb5\x2f\xfd", _packed("Zstandard", "unzstd")),
    (b"\xfd7zXZ\0", _packed("xz", "unxz")), (b"7z\xbc\xaf\x27\x1c", _packed("7-Zip", "7z x")),
    (b"\x04\x22\x4d\x18", _packed("LZ4", "unlz4")),
    (b"ARROW1\0\0", _table("an Arrow file")), (b"SQLite format 3\0", _table("an SQLite database")),
    (b"\x89HDF\r\n\x1a\n", _table("HDF5")), (b"\x93NUMPY", _table("a NumPy array")),
    (b"\x89PNG\r\n\x1a\n", _other("a PNG picture")), (b"\xff\xd8\xff", _other("a JPEG picture")),
    (b"\x7fELF", _other("a program")), (b"%PDF-1.", _other("a PDF")), (b"%PDF-2.", _other("a PDF")),
    (b"\xff\xfe\0\0", _wide("UTF-32")), (b"\0\0\xfe\xff", _wide("UTF-32")),
    (b"\xff\xfe", _wide("UTF-16")), (b"\xfe\xff", _wide("UTF-16")),
)  # fmt: skip
#: These signatures are plain letters, so they count only in a file that also has a zero byte.
_IN_BINARY = ((b"PAR1", _table("a Parquet file")), (b"GIF8", _other("a GIF picture")), (b"RIFF", _other("sound or a picture")))


def kind_of(head: bytes) -> FileKind | None:
    """Return the kind of a file whose first HEAD_NBYTES are `head`; None if it is text, as far as they show."""
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head[:3] == b"BZh" and head[4:10] == b"1AY&SY":
        return _packed("bzip2", "bunzip2")
    place = head.find(b"\0")
    if place < 0:
        return None
    for signature, kind in _IN_BINARY:
        if head.startswith(signature):
            return kind
    if len(head) > 1 and _is_wide(head):
        return _wide("UTF-16")
    return _other(f"binary (byte {place} is zero)")


def _is_wide(head: bytes) -> bool:
    """Return whether nearly every second byte is zero and no other byte is: letters in UTF-16 without a byte order mark."""
    half = len(head) // 2
    even, odd = head[: 2 * half : 2].count(0), head[1 : 2 * half : 2].count(0)
    return min(even, odd) == 0 and max(even, odd) > 0.8 * half
