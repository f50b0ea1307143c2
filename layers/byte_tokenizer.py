"""Bytes as tokens.

Covers `ByteTokenizer`, and the tokenizer.json that gives other programs the same ids. All other tokenizers are in tokenizer.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asynctile.layers.companions import TOKENIZER
from asynctile.storage.folder import write_file

__all__ = ["ByteTokenizer", "byte_bpe", "checked_ids"]


class ByteTokenizer:
    """The bytes of UTF-8 as tokens: 256 of them, nothing to train, nothing unknown."""

    vocab_size = 256
    fingerprint = "bytes"

    @property
    def special(self) -> dict[str, int]:
        """An empty dict: no byte is a special token."""
        return {}

    def encode(self, text: str | bytes) -> NDArray[Any]:
        """Return the ids (n,), uint16, of a text or of raw bytes: one id a byte."""
        return np.frombuffer(_as_bytes(text), np.uint8).astype(np.uint16)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids (n,); invalid UTF-8 becomes U+FFFD. ValueError for an id outside 0..255."""
        return checked_ids(ids, self.vocab_size).astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` into an existing folder.

        The file describes a byte-level BPE without merges whose ids are the bytes, so other programs can read it too.
        """
        write_file(Path(folder, TOKENIZER), self.to_json())

    def to_json(self) -> bytes:
        """Return the content of the `tokenizer.json` that `save` writes."""
        return json.dumps(byte_bpe(), ensure_ascii=False, indent=2).encode()


def byte_bpe() -> dict[str, Any]:
    """Return the tokenizer.json of a byte-level BPE without merges, in which the id of a byte is the byte."""
    # GPT-2 writes bytes as characters: printable bytes as themselves, the others from U+0100 on.
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


def checked_ids(ids: ArrayLike, vocab_size: int) -> NDArray[Any]:
    """Return ids (n,) as int64; ValueError, naming the id, for one outside 0..vocab_size - 1."""
    array = np.asarray(ids, np.int64).reshape(-1)
    if array.size and not 0 <= array.min() <= array.max() < vocab_size:
        wrong = array[(array < 0) | (array >= vocab_size)][0]
        raise ValueError(
            f"token id {wrong} is outside the tokenizer's vocabulary; expected 0 to {vocab_size - 1}"
        )
    return array


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", errors="surrogateescape") if isinstance(text, str) else text
