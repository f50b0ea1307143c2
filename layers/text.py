"""Text to train on: its files, their order, and their bytes in pieces.

Covers a single file, a folder of files, and the source of Python's standard library. No file is read whole. file_kind.py tells
a file's kind by its first bytes, jsonl.py reads lines of JSON, tokens.py makes tokens of the pieces with a tokenizer of
tokenizer.py.
"""

from __future__ import annotations

import hashlib
import io
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from asynctile.layers.file_kind import HEAD_NBYTES, FileKind, kind_of
from asynctile.layers.jsonl import SUFFIX, read_texts
from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.tokens import Progress, TextPiece, TokenFile, tokenise
from asynctile.storage.input import open_file, shown

__all__ = ["PIECE_NBYTES", "TEXT_FIELD", "TextSource"]

#: the default name of the JSON field that holds a document's text
TEXT_FIELD = "text"
#: bytes read at once, which are also the most that one call of a tokenizer gets
PIECE_NBYTES = 1 << 20
_WAY_OUT = "name a text file, a .jsonl, a folder of them or a .bin of tokens"
#: folders inside the standard library that do not belong to it, or whose text is unusual on purpose
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
#: how many file names a message shows
_SHOWN_FILES = 3


class TextSource:
    """The text of a file, of a folder's files in sorted order, or (None) of Python's standard library.

    A .jsonl file is documents, one a line. Any other file is plain text. In a folder, a plain file continues the text of the
    plain file before it. Hidden files, and files that are not text by their first bytes, are left out of a folder, at any
    depth. ValueError, naming the path, if it is missing, unreadable or has no text.
    """

    #: text can be given to any tokenizer
    is_text = True

    def __init__(self, path: str | os.PathLike[str] | None, text_field: str = TEXT_FIELD) -> None:
        # Links are not resolved: the target's name may lack the suffix that tells its kind.
        self.path = Path(sysconfig.get_path("stdlib") if path is None else path).absolute()
        self.text_field = text_field
        try:
            found = _library_files(self.path) if path is None else _files(self.path)
            self.files = tuple(file for file, kind in found if kind is None)
            stats = [file.stat() for file in self.files]
        except OSError as error:
            raise _unreadable(error) from error
        #: files of a folder that are not text
        self.left_out = tuple(file for file, kind in found if kind is not None)
        if self.left_out == (self.path,) and (kind := found[0][1]):
            raise ValueError(f"data {self.path} is {kind.name}, expected text; {kind.way_out}")
        self.nbytes = sum(stat.st_size for stat in stats)
        if self.nbytes == 0:
            what = "the file" if self.files == (self.path,) else "every file"
            empty = f"{what} is empty" if self.files else "it has no text files"
            left_out = f", and {self.note}" if self.note else ""
            raise ValueError(f"data {self.path} has no text: {empty}{left_out}; {_WAY_OUT}")
        digest = hashlib.sha256()
        for file, stat in zip(self.files, stats, strict=True):
            digest.update(
                f"{file.relative_to(self.path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(
                    "utf-8", "surrogateescape"
                )
            )
        if any(map(_has_documents, self.files)):
            digest.update(f"\0{text_field}".encode("utf-8", "surrogateescape"))
        #: changes when a file is added, removed, renamed or written to, or when another field is read
        self.fingerprint = digest.hexdigest()

    @property
    def note(self) -> str | None:
        """A sentence about files that were left out; None if there were none."""
        if not self.left_out:
            return None
        names = [shown(str(file.relative_to(self.path)))[1:-1] for file in self.left_out[:_SHOWN_FILES]]
        more = ", ..." if len(self.left_out) > _SHOWN_FILES else ""
        files = "binary file was" if len(self.left_out) == 1 else "binary files were"
        return f"{len(self.left_out):,} {files} left out: {', '.join(names)}{more}"

    def tokens(
        self, tokenizer: Tokenizer, folder: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> TokenFile:
        """Return the tokens of the text, kept in `folder`; see `tokenise`."""
        return tokenise(self, tokenizer, folder, progress=progress)

    def pieces(self) -> Iterator[bytes]:
        """Yield the text of `read`, without marking where documents begin."""
        return (piece.text for piece in self.read())

    def read(self) -> Iterator[TextPiece]:
        """Yield the text in order, in pieces of at most PIECE_NBYTES.

        A piece never cuts a UTF-8 character, never cuts a line that fits, and never holds text of two documents. Pieces are a
        pure function of the text, so a tokenizer that looks across bytes gives the same tokens again. ValueError, naming the
        file, if it cannot be read or has a line that is not a document.
        """
        done, in_text = 0, True
        for path in self.files:
            try:
                if _has_documents(path):
                    for text, place in read_texts(path, self.text_field):
                        yield from _pieces(io.BytesIO(text), True, done + place - len(text))
                    in_text = False
                else:
                    with io.BufferedReader(open_file(path)) as file:
                        yield from _pieces(file, not in_text, done)
                    in_text = True
                done += path.stat().st_size
            except OSError as error:
                raise _unreadable(error) from error


def _pieces(file: BinaryIO, begins: bool, done: int) -> Iterator[TextPiece]:
    """Yield the text of a file in pieces. begins: whether a document begins with it. done: bytes before the file."""
    rest = b""
    while block := file.read(PIECE_NBYTES - len(rest)):
        buffer = rest + block
        cut = _cut(buffer)
        done += cut
        yield TextPiece(buffer[:cut], begins, done)
        rest, begins = buffer[cut:], False
    if rest:
        yield TextPiece(rest, begins, done + len(rest))


def _cut(buffer: bytes) -> int:
    """Return where to end a piece, at least 1: after the last line, otherwise before a character that may not be whole."""
    cut = buffer.rfind(b"\n") + 1
    if cut == 0:
        cut = len(buffer)
        for back in range(1, min(4, len(buffer)) + 1):
            if buffer[-back] & 0xC0 != 0x80:  # not a continuation byte: a character begins here
                cut = len(buffer) - back if buffer[-back] >= 0xC0 else len(buffer)
                break
    return cut or len(buffer)  # only the beginning of a character: the file ends inside it


def _has_documents(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def _unreadable(error: OSError) -> ValueError:
    return ValueError(f"data {error.filename} cannot be read: {error.strerror}; {_WAY_OUT}")


def _walk(root: Path, skip: set[str]) -> Iterator[Path]:
    """Yield the files under a folder, sorted by name at each level.

    Links to folders are not followed, because they may form loops.
    """

    def fail(error: OSError) -> None:
        raise error

    for folder, subfolders, names in os.walk(root, onerror=fail):
        subfolders[:] = sorted(name for name in subfolders if name not in skip and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _files(path: Path) -> list[tuple[Path, FileKind | None]]:
    """Return each file with its kind, None for text."""
    if not path.is_dir():
        return [(path, _kind(path))]
    return [(file, _kind(file)) for file in _walk(path, {"__pycache__"}) if file.is_file()]


def _library_files(path: Path) -> list[tuple[Path, None]]:
    return [(file, None) for file in _walk(path, _NOT_LIBRARY) if file.suffix == ".py" and file.is_file()]


def _kind(path: Path) -> FileKind | None:
    with open_file(path) as file:
        return kind_of(file.read(HEAD_NBYTES))
