"""Tokenizers: text to token ids and back.

Covers files of the `tokenizers` library (tokenizer.json, as in Hugging Face models), training a byte-level BPE, and finding the
tokenizer that a name or a folder means. byte_tokenizer.py has bytes as tokens, bpe_files.py GPT-2's older files. text.py
supplies text, data.py files of tokens and batches.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
from numpy.typing import ArrayLike, NDArray

from asynctile.layers.bpe_files import ADDED, MERGES, SPECIAL, VOCAB, tokenizer_json
from asynctile.layers.byte_tokenizer import ByteTokenizer, byte_bpe, checked_ids
from asynctile.layers.companions import LIMITS, TOKENIZER, TOKENIZER_CONFIG
from asynctile.layers.tokenizer_trial import refusal
from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import unreadable, write_file
from asynctile.storage.input import parse_json, read_file

__all__ = [
    "ByteTokenizer",
    "HuggingFaceTokenizer",
    "Tokenizer",
    "has_tokenizer",
    "load_tokenizer",
    "open_tokenizer",
    "parse_tokenizer",
    "tokenizer_of",
    "train_bpe",
]

_FILE_NBYTES = LIMITS[TOKENIZER]
#: A larger file cannot be the byte tokenizer's, which has 5 KiB.
_BYTES_NBYTES = 64 << 10
_EXPECTED = ('expected "bytes", the path of a tokenizer.json, of a vocab.json with merges.txt beside it, or of a folder with '
             'either, or "bpe:N" with N from 256 to 1000000, such as "bpe:8192"')
#: The files that define the tokenizer of a folder.
_FILES = (TOKENIZER, VOCAB, MERGES, TOKENIZER_CONFIG, SPECIAL, ADDED)
_ANOTHER = "use another tokenizer"


class Tokenizer(Protocol):
    """The interface of a tokenizer for the data, the trainer and `generate`."""

    @property
    def vocab_size(self) -> int:
        """The bound of ids: every id is below it."""

    @property
    def fingerprint(self) -> str:
        """A string that is equal for two tokenizers if and only if they give the same ids for every text."""

    @property
    def special(self) -> dict[str, int]:
        """The ids of tokens that are not text, such as <|endoftext|>, by token."""

    def encode(self, text: str | bytes) -> NDArray[Any]:
        """Return the ids (n,) of a text: uint16 if the vocabulary fits, otherwise uint32. Invalid UTF-8 is accepted."""

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids (n,). Invalid UTF-8 becomes U+FFFD. ValueError for an id outside the vocabulary."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` into an existing folder, for `open_tokenizer` and for Hugging Face's programs."""

    def to_json(self) -> bytes:
        """Return the content of that `tokenizer.json`."""


class HuggingFaceTokenizer:
    """A tokenizer of the `tokenizers` library.

    `encode` adds no special tokens around a text, and neither cuts nor pads it: a corpus is one long text.
    """

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        # The largest id + 1, not the number of entries: some vocabularies have holes, and the embedding is indexed by id.
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.fingerprint: str = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        added = tokenizer.get_added_tokens_decoder()
        self.special: dict[str, int] = {token.content: id for id, token in added.items() if token.special}
        self._dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    @classmethod
    def parse(cls, content: bytes, path: str | os.PathLike[str], what: str = "a tokenizer.json") -> HuggingFaceTokenizer:
        """Return the tokenizer of a `tokenizer.json`'s bytes; ValueError if they are invalid.

        path, what: name the file in messages.
        """
        fault = refusal(content)
        if fault is not None:
            raise ValueError(f"tokenizer {path} is not {what} ({fault}); {_EXPECTED}")
        with _said(f"tokenizer {path} is not {what}", _EXPECTED):
            opened = cls(tokenizers.Tokenizer.from_buffer(content))
        if opened.vocab_size == 0:
            raise ValueError(f"tokenizer {path} has no tokens; {_EXPECTED}")
        return opened

    def encode(self, text: str | bytes) -> NDArray[Any]:
        """Return ids (n,), uint16 if the vocabulary fits, otherwise uint32. ValueError for a text that it cannot encode."""
        return self._encoded(text, around=False)

    def encode_prompt(self, text: str | bytes) -> NDArray[Any]:
        """Return the ids of `encode`, and around them the tokens that the tokenizer.json names, such as LLaMA's first one."""
        return self._encoded(text, around=True)

    def encode_places(self, text: str, *, around: bool) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return ids (n,), and which characters each covers (n, 2): the first one, and the one behind the last.

        around: with the tokens of `encode_prompt`, which cover none.
        """
        with _said("the tokenizer cannot encode the text", _ANOTHER):
            found = self._tokenizer.encode(text, add_special_tokens=around)
            return np.asarray(found.ids, self._dtype), np.asarray(found.offsets, np.int64).reshape(-1, 2)

    def _encoded(self, text: str | bytes, *, around: bool) -> NDArray[Any]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        with _said("the tokenizer cannot encode the text", _ANOTHER):
            return np.asarray(self._tokenizer.encode(text, add_special_tokens=around).ids, self._dtype)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids (n,); ValueError for an id outside the vocabulary."""
        checked = checked_ids(ids, self.vocab_size).tolist()
        with _said("the tokenizer cannot decode the tokens", _ANOTHER):
            text: str = self._tokenizer.decode(checked, skip_special_tokens=False)
        return text

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` into an existing folder."""
        write_file(Path(folder, TOKENIZER), self.to_json())

    def to_json(self) -> bytes:
        """Return the content of its `tokenizer.json`. ValueError if it is too large to be read back."""
        content: bytes = self._tokenizer.to_str(pretty=True).encode()
        if len(content) > _FILE_NBYTES:
            raise ValueError(f"the tokenizer.json of {self.vocab_size:,} tokens has {len(content)} bytes, but at most "
                             f"{_FILE_NBYTES} can be read back; use a smaller vocabulary")
        return content


def train_bpe(texts: Iterable[str | bytes], vocab_size: int) -> HuggingFaceTokenizer:
    """Train a byte-level BPE like GPT-2's on pieces of text; the same text gives the same tokenizer.

    The vocabulary begins with the 256 bytes, so nothing is unknown. It may stay smaller than `vocab_size` if the text has no
    more pairs to merge. ValueError if `vocab_size` is not an int of 256 or more.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 256:
        raise ValueError(
            f"vocab_size {vocab_size!r} of a BPE is too small or not an int; expected an int of 256 (the bytes) or more"
        )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (text if isinstance(text, str) else text.decode("utf-8", errors="replace") for text in texts)
    tokenizer.train_from_iterator(pieces, trainer)
    return HuggingFaceTokenizer(tokenizer)


def load_tokenizer(spec: str, texts: Iterable[str | bytes]) -> Tokenizer:
    """Return the tokenizer that a user names.

    spec: "bytes"; the path of a tokenizer.json, of a vocab.json with merges.txt beside it, or of a folder with either; or
    "bpe:N" to train one on `texts`, which is read only then. ValueError for anything else.
    """
    if spec == "bytes":
        return ByteTokenizer()
    kind, _, number = spec.partition(":")
    if kind == "bpe":
        if not (
            number.isascii() and number.isdigit() and 256 <= int(number[:8]) <= 1_000_000 and len(number) <= 7
        ):
            raise ValueError(f"tokenizer {spec!r} does not give a valid vocabulary size; {_EXPECTED}")
        return train_bpe(texts, int(number))
    path = Path(spec)
    if not spec or not (path.is_dir() or path.is_file()):
        raise ValueError(f"tokenizer {spec!r} is neither a known name nor a file; {_EXPECTED}")
    if path.is_dir() and not has_tokenizer(path):
        raise ValueError(f"tokenizer {spec!r} is a folder with neither {TOKENIZER} nor {VOCAB} and {MERGES}; {_EXPECTED}")
    try:
        if path.is_dir():
            return tokenizer_of(_read(path, _FILES), path)
        if path.name == VOCAB:
            return tokenizer_of(_read(path.parent, _FILES[1:]), path.parent)
        return parse_tokenizer(read_file(path, _FILE_NBYTES), spec)
    except OSError as error:
        raise ValueError(f"tokenizer {error.filename} cannot be read: {error.strerror}; {_EXPECTED}") from error


def has_tokenizer(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder has a tokenizer's files: tokenizer.json, or vocab.json and merges.txt."""
    folder = Path(folder)
    return (folder / TOKENIZER).is_file() or all((folder / name).is_file() for name in (VOCAB, MERGES))


def open_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a model's folder, or one that `save` wrote into a folder.

    It is read from tokenizer.json, or from vocab.json and merges.txt if there is none. CheckpointError if these are missing or
    damaged.
    """
    folder = Path(folder)
    try:
        files = _read(folder, _FILES)
        if TOKENIZER not in files and not {VOCAB, MERGES} <= files.keys():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / TOKENIZER))
    except OSError as error:
        raise unreadable(error.filename, error) from error
    try:
        return tokenizer_of(files, folder)
    except ValueError as error:
        raise CheckpointError(f"cannot open the tokenizer of {folder}: {error}") from error


def _read(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the files of a folder that define its tokenizer. If there is a tokenizer.json, no other file counts."""
    found = {}
    for name in names:
        try:
            found[name] = read_file(folder / name, LIMITS[name])
        except FileNotFoundError:
            continue
        if name == TOKENIZER:
            break
    return found


def tokenizer_of(files: Mapping[str, bytes], folder: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a folder's files, content by name. ValueError, naming the file, if they do not define one."""
    if TOKENIZER in files:
        return parse_tokenizer(files[TOKENIZER], Path(folder, TOKENIZER))
    missing = [name for name in (VOCAB, MERGES) if name not in files]
    if missing:
        raise ValueError(f"tokenizer {folder} has no {missing[0]}; {_EXPECTED}")
    try:
        content = tokenizer_json(files)
    except ValueError as error:
        raise ValueError(f"tokenizer {folder}: {error}; {_EXPECTED}") from error
    return HuggingFaceTokenizer.parse(content, Path(folder, VOCAB), f"a {VOCAB} with {MERGES}")


def parse_tokenizer(content: bytes, path: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`'s bytes. ValueError, naming `path`, if they are invalid."""
    if len(content) < _BYTES_NBYTES and _is_of_bytes(content):
        return ByteTokenizer()
    return HuggingFaceTokenizer.parse(content, path)


def _is_of_bytes(content: bytes) -> bool:
    try:
        return bool(parse_json(content) == byte_bpe())
    except ValueError:
        return False


@contextmanager
def _said(what: str, way_out: str) -> Iterator[None]:
    """Turn the library's exceptions, and its panic, which is a BaseException, into ValueError."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{what} ({ascii(str(error))[1:-1][:200]}); {way_out}") from error
