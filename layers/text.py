"""Text to train on: which files, in which order, and their bytes in pieces.

Covers one file, a folder of them, and the source of Python's standard library. Nothing is read whole. What a file is by its
first bytes is `file_kind.py`, what its lines say `jsonl.py`; making tokens of the pieces is `tokens.py`, with a tokenizer of
`tokenizer.py`.
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

#: the field of a line of JSON that is its text, where nobody names another
TEXT_FIELD = "text"
#: bytes read at once; also what one call of a tokenizer gets
PIECE_NBYTES = 1 << 20
_WAY_OUT = "name a text file, a .jsonl, a folder of them or a .bin of tokens"
#: folders of the standard library that are not of it, or whose text is made to be odd
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
#: names in a sentence
_SHOWN_FILES = 3


class TextSource:
    """The text of a file, of a folder's files in sorted order, or (None) of Python's standard library.

    A file named .jsonl is documents, one a line; any other is text as it stands, and in a folder one goes on where the one
    before it ended. In a folder, at any depth, hidden files and those that are no text by their first bytes are left out.
    Raises ValueError, naming the path, if it is missing, unreadable or holds no text.
    """

    #: it can be given to any tokenizer
    is_text = True

    def __init__(self, path: str | os.PathLike[str] | None, text_field: str = TEXT_FIELD) -> None:
        # A link keeps its name: what it leads to may have none that says what it is.
        self.path = Path(sysconfig.get_path("stdlib") if path is None else path).absolute()
        self.text_field = text_field
        try:
            found = _library_files(self.path) if path is None else _files(self.path)
            self.files = tuple(file for file, kind in found if kind is None)
            stats = [file.stat() for file in self.files]
        except OSError as error:
            raise _unreadable(error) from error
        #: files of a folder that are no text
        self.left_out = tuple(file for file, kind in found if kind is not None)
        if self.left_out == (self.path,) and (kind := found[0][1]):
            raise ValueError(f"data {self.path} is {kind.name}, expected text; {kind.way_out}")
        self.nbytes = sum(stat.st_size for stat in stats)
        if self.nbytes == 0:
            what = "it" if self.files == (self.path,) else "all that it has"
            empty = f"{what} is empty" if self.files else "it has no text files"
            left_out = f", and {self.note}" if self.note else ""
            raise ValueError(f"data {self.path} holds no text: {empty}{left_out}; {_WAY_OUT}")
        digest = hashlib.sha256()
        for file, stat in zip(self.files, stats, strict=True):
            digest.update(
                f"{file.relative_to(self.path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(
                    "utf-8", "surrogateescape"
                )
            )
        if any(map(_has_documents, self.files)):
            digest.update(f"\0{text_field}".encode("utf-8", "surrogateescape"))
        #: changes when a file is added, removed, renamed, or written to, or another field is read
        self.fingerprint = digest.hexdigest()

    @property
    def note(self) -> str | None:
        """What was left out of it, in a sentence; None: nothing was."""
        if not self.left_out:
            return None
        names = [shown(str(file.relative_to(self.path)))[1:-1] for file in self.left_out[:_SHOWN_FILES]]
        more = ", ..." if len(self.left_out) > _SHOWN_FILES else ""
        files = "binary file was" if len(self.left_out) == 1 else "binary files were"
        return f"{len(self.left_out):,} {files} left out: {', '.join(names)}{more}"

    def tokens(
        self, tokenizer: Tokenizer, folder: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> TokenFile:
        """Its tokens, kept in `folder`; see `tokenise`."""
        return tokenise(self, tokenizer, folder, progress=progress)

    def pieces(self) -> Iterator[bytes]:
        """The text of `read`, without what stands between documents."""
        return (piece.text for piece in self.read())

    def read(self) -> Iterator[TextPiece]:
        """The text in order, in pieces of at most PIECE_NBYTES that never cut a UTF-8 character, nor a line if it fits, and
        never hold the text of two documents.

        Pieces are a pure function of the text, so that a tokenizer that looks across bytes gives the same tokens again.
        Raises ValueError, naming it, for a file that cannot be read or has a line that is no document.
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
    """The text of a file in pieces; `begins`: with a document. done: bytes before it."""
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
    """Where to end a piece, at least 1: after the last line, else before a character that may not be whole.
    """
    cut = buffer.rfind(b"\n") + 1
    if cut == 0:
        cut = len(buffer)
        for back in range(1, min(4, len(buffer)) + 1):
            if buffer[-back] & 0xC0 != 0x80:  # not a continuation byte: a character begins here
                cut = len(buffer) - back if buffer[-back] >= 0xC0 else len(buffer)
                break
    return cut or len(buffer)  # nothing but the beginning of a character: the file ends in it


def _has_documents(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def _unreadable(error: OSError) -> ValueError:
    return ValueError(f"data {error.filename} cannot be read: {error.strerror}; {_WAY_OUT}")


def _walk(root: Path, skip: set[str]) -> Iterator[Path]:
    """Files under a folder, sorted by their names at each level; links to folders are not followed (they may
    be loops).
    """

    def fail(error: OSError) -> None:
        raise error

    for folder, subfolders, names in os.walk(root, onerror=fail):
        subfolders[:] = sorted(name for name in subfolders if name not in skip and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _files(path: Path) -> list[tuple[Path, FileKind | None]]:
    """Each file with what it is, None: text."""
    if not path.is_dir():
        return [(path, _kind(path))]
    return [(file, _kind(file)) for file in _walk(path, {"__pycache__"}) if file.is_file()]


def _library_files(path: Path) -> list[tuple[Path, None]]:
    return [(file, None) for file in _walk(path, _NOT_LIBRARY) if file.suffix == ".py" and file.is_file()]


def _kind(path: Path) -> FileKind | None:
    with open_file(path) as file:
        return kind_of(file.read(HEAD_NBYTES))
