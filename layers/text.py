"""Text to train on: which files, in which order, and their bytes in pieces.

Covers one file, a folder of text files, and the source of Python's standard library. Nothing is read whole.
Making tokens of the pieces is `tokens.py`, with a tokenizer of `tokenizer.py`.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from asynctile.layers.tokenizer import Tokenizer
from asynctile.layers.tokens import Progress, TokenFile, tokenise
from asynctile.storage.input import open_file, shown

__all__ = ["PIECE_NBYTES", "TextSource"]

#: bytes read at once; also what one call of a tokenizer gets
PIECE_NBYTES = 1 << 20
_WAY_OUT = "name a text file or a folder of text files, or name none to read Python's own standard library"
#: folders of the standard library that are not of it, or whose text is made to be odd
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class TextSource:
    """The text of a file, of a folder's text files in sorted order, or (None) of Python's standard library.

    In a folder, at any depth, hidden files and those with a zero byte in their first 8 KiB (not text) are
    left out. Raises ValueError, naming the path, if it is missing, unreadable or holds no text.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        named = Path(sysconfig.get_path("stdlib") if path is None else path)
        try:
            self.path = named.resolve()
            self.files = _library_files(self.path) if path is None else _text_files(self.path)
            stats = [file.stat() for file in self.files]
        except OSError as error:
            raise ValueError(f"data {error.filename} cannot be read: {error.strerror}; {_WAY_OUT}") from error
        except RuntimeError as error:  # links in a circle, before Python 3.13
            raise ValueError(f"data {named} cannot be read: {os.strerror(errno.ELOOP)}; {_WAY_OUT}") from error
        except ValueError as error:
            raise ValueError(f"data {shown(str(named))} cannot be read: no file can have this name; {_WAY_OUT}") from error
        self.nbytes = sum(stat.st_size for stat in stats)
        if self.nbytes == 0:
            found = f"its {len(self.files)} files are empty" if self.files else "it has no text files"
            raise ValueError(f"data {self.path} holds no text: {found}; {_WAY_OUT}")
        digest = hashlib.sha256()
        for file, stat in zip(self.files, stats, strict=True):
            digest.update(
                f"{file.relative_to(self.path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(
                    "utf-8", "surrogateescape"
                )
            )
        #: changes when a file is added, removed, renamed, or written to
        self.fingerprint = digest.hexdigest()

    @property
    def note(self) -> str | None:
        """What was left out of it, in a sentence; None: nothing was."""
        return None

    def tokens(
        self, tokenizer: Tokenizer, folder: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> TokenFile:
        """Its tokens, kept in `folder`; see `tokenise`."""
        return tokenise(self, tokenizer, folder, progress=progress)

    def pieces(self) -> Iterator[bytes]:
        """The text in order, in pieces of about PIECE_NBYTES that never cut a UTF-8 character, nor a line if
        it fits.

        Pieces are a pure function of the text, so that a tokenizer that looks across bytes gives the same
        tokens again.
        """
        for path in self.files:
            rest = b""
            with io.BufferedReader(open_file(path)) as file:
                while block := file.read(PIECE_NBYTES - len(rest)):
                    buffer = rest + block
                    cut = _cut(buffer)
                    yield buffer[:cut]
                    rest = buffer[cut:]
            if rest:
                yield rest


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


def _walk(root: Path, skip: set[str]) -> Iterator[Path]:
    """Files under a folder, sorted by their names at each level; links to folders are not followed (they may
    be loops).
    """

    def fail(error: OSError) -> None:
        raise error

    for folder, subfolders, names in os.walk(root, onerror=fail):
        subfolders[:] = sorted(name for name in subfolders if name not in skip and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _text_files(path: Path) -> tuple[Path, ...]:
    if not path.is_dir():
        open_file(path).close()  # a regular file
        return (path,)
    return tuple(file for file in _walk(path, {"__pycache__"}) if file.is_file() and _is_text(file))


def _library_files(path: Path) -> tuple[Path, ...]:
    return tuple(file for file in _walk(path, _NOT_LIBRARY) if file.suffix == ".py" and file.is_file())


def _is_text(path: Path) -> bool:
    with open_file(path) as file:
        return b"\0" not in file.read(8192)
