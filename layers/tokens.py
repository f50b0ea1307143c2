"""Token ids in a file, and its parts.

Covers `TokenFile`, `TokenView`, `split`; `tokenise`, which makes the file of a text and keeps it for the next run; `refer`,
which remembers a file elsewhere; `open_tokens`, which opens either again; and `filling`, which writes files with their record.
text.py supplies text, tokenizer.py makes tokens, data.py makes batches. examples.py keeps examples with their answers.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asynctile.layers.special_tokens import separator
from asynctile.layers.tokenizer import Tokenizer
from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import encode_json, read_json, write_file
from asynctile.storage.input import open_file, shown
from asynctile.storage.inside import Folder, write_whole

__all__ = [
    "Filled", "Progress", "Text", "TextPiece", "TokenFile", "TokenView", "Tokens", "filling", "is_of", "open_tokens",
    "origin_of", "read_record", "refer", "split", "tokenise",
]  # fmt: skip

#: called with the bytes done and the bytes in all
Progress = Callable[[int, int], None]

#: the dtypes of ids in a file
DTYPES = ("uint16", "uint32")
TOKENS, RECORD = "tokens.bin", "tokens.json"
#: how many bytes of text and ids may wait to be written
HELD_NBYTES = 1 << 20


class TextPiece(NamedTuple):
    """A part of a text that a tokenizer gets on its own."""

    text: bytes
    begins: bool
    """Whether a document begins with this piece. The text before it belongs to another document."""
    nbytes: int
    """How many bytes of the text's files have been read with this piece, earlier pieces included."""


class Text(Protocol):
    """A text that tokens are made of, such as a `TextSource`. `fingerprint` changes whenever the text may have changed."""

    path: Path
    nbytes: int
    fingerprint: str

    def read(self) -> Iterator[TextPiece]:
        """Yield the text in order. The pieces are a pure function of the text."""


class TokenFile:
    """Raw token ids of `dtype` (uint16 or uint32) in a file that stays open. A slice is read on demand.

    The way not taken: mapping the file. If someone shortens a mapped file, the processes that read it die without a message.

    ValueError if the file is missing, empty or not a regular file, or if its size is not a multiple of the dtype's.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: DTypeLike) -> None:
        self.path = Path(path)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        try:
            with open_file(path) as file:
                #: the file's status when it was opened
                self.stat = os.fstat(file.fileno())
                nbytes = self.stat.st_size
                if nbytes == 0 or nbytes % self.dtype.itemsize:
                    raise ValueError(f"token file {path} has {nbytes} bytes, expected a multiple of {self.dtype.itemsize} "
                                     f"above 0, for ids of {self.dtype.name}; copy it again, or remake it")
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise ValueError(f"token file {path} cannot be read: {error.strerror}; restore it, or name another") from error
        weakref.finalize(self, os.close, self._fd)
        self._count = nbytes // self.dtype.itemsize

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice, /) -> NDArray[Any]:
        """Return the ids of a slice with step 1. CheckpointError if the file has become shorter, OSError if the disk fails."""
        start, stop, _ = part.indices(self._count)
        found = np.empty(max(0, stop - start), self.dtype)
        done, nbytes = 0, found.nbytes
        while done < nbytes:  # one read suffices for less than some GiB
            left = found.data.cast("B")[done:] if done else found.data
            count = os.preadv(self._fd, [left], start * self.dtype.itemsize + done)
            if not count:
                raise CheckpointError(f"token file {self.path} is now shorter than the {self.stat.st_size} bytes that it had "
                                      "when it was opened; restore it")
            done += count
        return found


class TokenView:
    """The tokens `start` to `stop` of a token file."""

    def __init__(self, file: TokenFile, start: int, stop: int) -> None:
        self.file, self.start, self.stop = file, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, part: slice, /) -> NDArray[Any]:
        """Return the ids of a slice, clipped to this part."""
        start, stop, _ = part.indices(len(self))
        return self.file[self.start + start : self.start + max(start, stop)]


#: A row of token ids.
Tokens: TypeAlias = TokenFile | TokenView | NDArray[Any]


def open_tokens(folder: str | os.PathLike[str]) -> TokenFile:
    """Return the tokens that the record in a folder describes: those of a text, in the folder, or those of a file elsewhere.

    CheckpointError, naming the file, if the record is missing or damaged. ValueError if the tokens are damaged, or if the file
    elsewhere has changed.
    """
    record, known = Path(folder, RECORD), read_record(folder)
    dtype, nbytes, elsewhere = known["dtype"], known.get("nbytes"), known.get("path")
    if not isinstance(elsewhere, str | None):
        raise CheckpointError(f"{record} is damaged: it has the path {shown(elsewhere)}, expected a string; start another run")
    tokens = TokenFile(Path(folder, TOKENS) if elsewhere is None else elsewhere, dtype)
    found, expected = (tokens.stat.st_size, tokens.stat.st_mtime_ns), (nbytes, known.get("mtime_ns"))
    if elsewhere is not None and found != expected:
        raise ValueError(f"token file {tokens.path} has changed since {record} was written: it has {_as_it_was(*found)}, "
                         f"expected {_as_it_was(*expected)}; restore the old file, or start another run")
    if nbytes != tokens.stat.st_size:
        raise ValueError(f"token file {tokens.path} has {tokens.stat.st_size} bytes, but {record} says "
                         f"{shown(nbytes)}; copy it again or start another run")
    return tokens


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of a folder's tokens, whose dtype is one of DTYPES. CheckpointError if it is missing or damaged."""
    record = Path(folder, RECORD)
    known = read_json(record)
    known = known if isinstance(known, dict) else {}
    if known.get("dtype") not in DTYPES:
        raise CheckpointError(f"{record} is damaged: it has the dtype {shown(known.get('dtype'))}, expected "
                              f"{' or '.join(DTYPES)}; start another run")
    return known


def _as_it_was(nbytes: object, mtime_ns: object) -> str:
    """Return a file's size and time for a message. Invalid values from a damaged record are shown as they are."""
    when = shown(mtime_ns)
    if isinstance(mtime_ns, int) and 0 <= mtime_ns < 1 << 63:
        when = str(np.datetime64(int(mtime_ns), "ns"))
    return f"{shown(nbytes)} bytes, written {when}"


def tokenise(
    source: Text,
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> TokenFile:
    """Write the tokens of a text to `folder`, or open them if they are there; return them.

    The files are `tokens.bin`, and `tokens.json`, which records the text and the tokenizer. Existing tokens are used only if
    the source, the sizes and times of its files, and the tokenizer are the same. `progress` is called with bytes done and bytes
    in all. ValueError if the text gives no tokens, OSError if the disk fails.
    """
    folder, origin = Path(folder), origin_of(source, tokenizer)
    dtype = np.dtype(origin["dtype"])
    try:
        if is_of(folder, origin, ("nbytes",)):
            return open_tokens(folder)
    except (CheckpointError, ValueError):
        pass  # incomplete: this is only a cache
    with filling(folder, (TOKENS,), origin) as ((ids,), record):
        for found, read_nbytes in _batched(source, tokenizer):
            ids.append(found)
            if progress is not None:
                progress(read_nbytes, source.nbytes)
        if ids.nbytes == 0:
            raise ValueError(
                f"data {source.path} of {source.nbytes} bytes gives no tokens; use another text or tokenizer"
            )
        record["nbytes"] = ids.nbytes
    return TokenFile(folder / TOKENS, dtype)


def origin_of(source: Text, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the tokens of a source depend on, for their record: the source, its files and the tokenizer."""
    return {
        "source": str(source.path), "source_nbytes": source.nbytes, "source_fingerprint": source.fingerprint,
        "tokenizer": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size,
        "dtype": DTYPES[tokenizer.vocab_size > 1 << 16],
    }  # fmt: skip


def is_of(folder: Path, origin: Mapping[str, Any], found: Sequence[str]) -> bool:
    """Return whether a folder's record has this origin, and the entries `found` alone beside it. CheckpointError without it."""
    known = read_record(folder)
    return {name: value for name, value in known.items() if name not in found} == origin and known.keys() >= {*found}


class Filled:
    """A file that `filling` writes: arrays one behind the other. nbytes: how many bytes it has so far."""

    def __init__(self, folder: Folder, name: str, fd: int) -> None:
        self._folder, self._name, self._fd = folder, name, fd
        self._waiting: list[NDArray[Any]] = []
        self._waiting_nbytes = 0
        self.nbytes = 0

    def append(self, array: NDArray[Any]) -> None:
        """Put an array (n,) behind the others. OSError if the disk fails."""
        self._waiting.append(array)
        self._waiting_nbytes += array.nbytes
        self.nbytes += array.nbytes
        if self._waiting_nbytes >= HELD_NBYTES:
            self._write()

    def sync(self) -> None:
        """Bring everything to the disk. OSError if the disk fails."""
        self._write()
        with self._folder.naming(self._name):
            os.fsync(self._fd)

    def _write(self) -> None:
        if self._waiting:
            with self._folder.naming(self._name):
                write_whole(self._fd, np.concatenate(self._waiting).data.cast("B"))
            self._waiting, self._waiting_nbytes = [], 0


@contextmanager
def filling(
    folder: Path, names: Sequence[str], origin: Mapping[str, Any]
) -> Iterator[tuple[Sequence[Filled], dict[str, Any]]]:
    """Yield a file for each name, to be filled, and their record, to which the caller may add entries; it begins as `origin`.

    On leaving, the files are put into `folder` with the record behind them. On an error nothing in the folder changes.
    """
    record = dict(origin)
    folder.mkdir(parents=True, exist_ok=True)
    with Folder.open(folder) as inside:
        with ExitStack() as stack:
            files = [stack.enter_context(_filled(inside, name)) for name in names]
            yield files, record
            for file in files:
                file.sync()
            inside.remove(RECORD)  # first: a record must never stand beside tokens of another text
        inside.write(RECORD, encode_json(record))


@contextmanager
def _filled(folder: Folder, name: str) -> Iterator[Filled]:
    with folder.filling(name) as part:
        fd = folder.new_file(part)
        try:
            yield Filled(folder, name, fd)
        finally:
            os.close(fd)


def refer(folder: str | os.PathLike[str], tokens: TokenFile, tokenizer: Tokenizer) -> None:
    """Write the record of a token file elsewhere into `folder`, for `open_tokens`. OSError if the disk fails."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / RECORD, encode_json({
        "path": str(tokens.path), "nbytes": tokens.stat.st_size, "mtime_ns": tokens.stat.st_mtime_ns,
        "tokenizer": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "dtype": tokens.dtype.name,
    }))  # fmt: skip


def _batched(source: Text, tokenizer: Tokenizer) -> Iterator[tuple[NDArray[Any], int]]:
    """Yield the ids of a text, several short documents at once, with the bytes of its files that were read for them.

    Between two documents stand the ids of `separator`. They are made on their own: no tokenizer joins them with each other or
    with the texts beside them.
    """
    between = separator(tokenizer)
    waiting: list[NDArray[Any]] = []
    held_nbytes, read_nbytes, is_first, is_owed = 0, 0, True, False
    for piece in source.read():
        ids, read_nbytes = tokenizer.encode(piece.text), piece.nbytes
        is_owed |= piece.begins and not is_first
        if ids.size:
            waiting += [between, ids] if is_owed else [ids]
            is_first = is_owed = False
        held_nbytes += ids.nbytes + len(piece.text)
        if waiting and held_nbytes >= HELD_NBYTES:
            yield np.concatenate(waiting), read_nbytes
            waiting, held_nbytes = [], 0
    if waiting:
        yield np.concatenate(waiting), read_nbytes


def split(token_file: TokenFile, validation_fraction: float = 0.05) -> tuple[TokenView, TokenView]:
    """Return the first tokens, to train on, and the last, to validate with. ValueError unless 0 < validation_fraction < 1."""
    if not 0 < validation_fraction < 1:
        raise ValueError(
            f"validation_fraction is {validation_fraction!r}, expected a number above 0 and below 1, such as 0.05"
        )
    n = len(token_file)
    border = n - math.ceil(n * validation_fraction)
    return TokenView(token_file, 0, border), TokenView(token_file, border, n)
