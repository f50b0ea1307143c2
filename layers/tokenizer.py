"""Tokenizers: text to token ids and back.

Covers bytes as tokens, the files of the `tokenizers` library (`tokenizer.json`, as Hugging Face models carry
it), and training a byte-level BPE. Where text comes from is `text.py`; files of tokens and batches of them
are `data.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
from numpy.typing import ArrayLike, NDArray

from asynctile.layers.companions import LIMITS, TOKENIZER
from asynctile.layers.tokenizer_trial import refusal
from asynctile.storage.errors import CheckpointError
from asynctile.storage.folder import unreadable, write_file
from asynctile.storage.input import parse_json, read_file

__all__ = [
    "ByteTokenizer",
    "HuggingFaceTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "open_tokenizer",
    "parse_tokenizer",
    "train_bpe",
]

_FILE_NBYTES = LIMITS[TOKENIZER]
#: A file above this is not that of the bytes, which has 5 KiB.
_BYTES_NBYTES = 64 << 10
_EXPECTED = 'expected "bytes", the path of a tokenizer.json, or "bpe:N" with N from 256 to 1000000, such as "bpe:8192"'
_ANOTHER = "use another tokenizer"


class Tokenizer(Protocol):
    """What the data, the trainer and `generate` need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Every id is below it."""

    @property
    def fingerprint(self) -> str:
        """Equal for two tokenizers if, and only if, they give the same ids for every text."""

    @property
    def special(self) -> dict[str, int]:
        """Ids by token of those that are no text, such as <|endoftext|>."""

    def encode(self, text: str | bytes) -> NDArray[Any]:
        """Ids (n,) of a text: uint16 if the vocabulary fits, else uint32. Bytes that are no UTF-8 are no
        error.
        """

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids (n,); bytes that are no UTF-8 become U+FFFD. ValueError for an id outside the
        vocabulary.
        """

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` into an existing folder, for `open_tokenizer` and for Hugging Face's
        programs.
        """

    def to_json(self) -> bytes:
        """The content of that file."""


class ByteTokenizer:
    """The bytes of UTF-8 as tokens: 256 of them, nothing to train, nothing unknown."""

    vocab_size = 256
    fingerprint = "bytes"

    @property
    def special(self) -> dict[str, int]:
        """None."""
        return {}

    def encode(self, text: str | bytes) -> NDArray[Any]:
        """Ids (n,) uint16."""
        return np.frombuffer(_as_bytes(text), np.uint8).astype(np.uint16)

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids (n,); ValueError for an id outside 0..255."""
        return _checked(ids, self.vocab_size).astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it as a byte-level BPE without merges, whose ids are the bytes: other programs read that too.
        """
        write_file(Path(folder, TOKENIZER), self.to_json())

    def to_json(self) -> bytes:
        """The content of its `tokenizer.json`."""
        return json.dumps(_byte_bpe(), ensure_ascii=False, indent=2).encode()


class HuggingFaceTokenizer:
    """A tokenizer of the `tokenizers` tokenizers.

    No special tokens are added around a text, and none is cut or padded: a corpus is one long text.
    """

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        # Not the number of entries: some vocabularies have holes, and the embedding is indexed by id.
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.fingerprint: str = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        added = tokenizer.get_added_tokens_decoder()
        self.special: dict[str, int] = {token.content: id for id, token in added.items() if token.special}
        self._dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    @classmethod
    def parse(cls, content: bytes, path: str | os.PathLike[str]) -> HuggingFaceTokenizer:
        """From the bytes of the `tokenizer.json` `path`. Raises ValueError, naming it, if they are none."""
        fault = refusal(content)
        if fault is not None:
            raise ValueError(f"tokenizer {path} is not a tokenizer.json ({fault}); {_EXPECTED}")
        with _said(f"tokenizer {path} is not a tokenizer.json", _EXPECTED):
            opened = cls(tokenizers.Tokenizer.from_buffer(content))
        if opened.vocab_size == 0:
            raise ValueError(f"tokenizer {path} has no tokens; {_EXPECTED}")
        return opened

    def encode(self, text: str | bytes) -> NDArray[Any]:
        """Ids (n,), uint16 if the vocabulary fits, else uint32. ValueError for a text that the vocabulary cannot say."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        with _said("the tokenizer cannot make tokens of the text", _ANOTHER):
            return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, self._dtype)

    def decode(self, ids: ArrayLike) -> str:
        """The text of ids (n,); ValueError for an id outside the vocabulary."""
        checked = _checked(ids, self.vocab_size).tolist()
        with _said("the tokenizer cannot make text of tokens", _ANOTHER):
            text: str = self._tokenizer.decode(checked, skip_special_tokens=False)
        return text

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` into an existing folder."""
        write_file(Path(folder, TOKENIZER), self.to_json())

    def to_json(self) -> bytes:
        """The content of its `tokenizer.json`. ValueError for more than would be read back."""
        content: bytes = self._tokenizer.to_str(pretty=True).encode()
        if len(content) > _FILE_NBYTES:
            raise ValueError(f"the tokenizer.json of {self.vocab_size:,} tokens has {len(content)} bytes, at most "
                             f"{_FILE_NBYTES} would be read back; use a smaller vocabulary")
        return content


def train_bpe(texts: Iterable[str | bytes], vocab_size: int) -> HuggingFaceTokenizer:
    """Train a byte-level BPE, as GPT-2 has, on pieces of text; the same text gives the same tokenizer.

    The vocabulary begins with the 256 bytes, so that nothing is unknown, and may stay smaller than
    `vocab_size` when the text has no more pairs to merge. Raises ValueError if `vocab_size` is not an int of
    256 or more.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 256:
        raise ValueError(
            f"vocab_size {vocab_size!r} of a BPE is too small or no int; expected 256 (the bytes) or more"
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
    """The tokenizer that a user names: "bytes", the path of a tokenizer.json, or "bpe:N" to train one on
    `texts`.

    `texts` is read only for "bpe:N". Raises ValueError for anything else.
    """
    if spec == "bytes":
        return ByteTokenizer()
    kind, _, number = spec.partition(":")
    if kind == "bpe":
        if not (
            number.isascii() and number.isdigit() and 256 <= int(number[:8]) <= 1_000_000 and len(number) <= 7
        ):
            raise ValueError(f"tokenizer {spec!r} has no vocabulary size that can be used; {_EXPECTED}")
        return train_bpe(texts, int(number))
    if not spec or not Path(spec).is_file():
        raise ValueError(f"tokenizer {spec!r} is neither a known name nor a file; {_EXPECTED}")
    try:
        content = read_file(spec, _FILE_NBYTES)
    except OSError as error:
        raise ValueError(f"tokenizer {spec} cannot be read: {error.strerror}; {_EXPECTED}") from error
    return parse_tokenizer(content, spec)


def open_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer that `save` wrote into a folder. Raises CheckpointError if it is missing or damaged."""
    path = Path(folder, TOKENIZER)
    try:
        content = read_file(path, _FILE_NBYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        return parse_tokenizer(content, path)
    except ValueError as error:
        raise CheckpointError(f"cannot open the tokenizer of {folder}: {error}") from error


def parse_tokenizer(content: bytes, path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of the bytes of the `tokenizer.json` `path`. Raises ValueError, naming it, if they are none."""
    if len(content) < _BYTES_NBYTES and _is_of_bytes(content):
        return ByteTokenizer()
    return HuggingFaceTokenizer.parse(content, path)


def _is_of_bytes(content: bytes) -> bool:
    try:
        return bool(parse_json(content) == _byte_bpe())
    except ValueError:
        return False


@contextmanager
def _said(what: str, way_out: str) -> Iterator[None]:
    """Turn the library's Exception, and its panic, which is a BaseException, into a ValueError."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{what} ({ascii(str(error))[1:-1][:200]}); {way_out}") from error


def _byte_bpe() -> dict[str, Any]:
    """The tokenizer.json of a byte-level BPE without merges, in which the id of a byte is the byte."""
    # GPT-2's way to write bytes as characters: printable ones as they are, the others from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    vocab = {chr(byte if byte in printable else next(others)): byte for byte in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", errors="surrogateescape") if isinstance(text, str) else text


def _checked(ids: ArrayLike, vocab_size: int) -> NDArray[Any]:
    array = np.asarray(ids, np.int64).reshape(-1)
    if array.size and not 0 <= array.min() <= array.max() < vocab_size:
        wrong = array[(array < 0) | (array >= vocab_size)][0]
        raise ValueError(
            f"token id {wrong} is outside the tokenizer's vocabulary; expected 0 to {vocab_size - 1}"
        )
    return array
