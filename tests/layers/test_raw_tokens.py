"""Tokens written by nanoGPT: opened in place, checked, remembered, and recognized later if unchanged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from asynctile.layers import raw_tokens
from asynctile.layers.data_source import open_source
from asynctile.layers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, train_bpe
from asynctile.layers.tokens import open_tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of tokens, written as nanoGPT's prepare.py does it."""
    ids = np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="w+", shape=(1000,))
    ids[:] = np.arange(1000) % 256
    ids.flush()
    return tmp_path / "train.bin"


def test_the_file_is_used_in_place(path: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = open_source(path)
    assert (source.is_text, source.note, source.nbytes) == (False, None, 2000)
    tokens = source.tokens(ByteTokenizer(), tmp_path / "tokens", progress=lambda done, total: seen.append((done, total)))
    assert tokens.path == path and seen == [(2000, 2000)]
    assert tokens[:].tolist() == [n % 256 for n in range(1000)]
    assert [file.name for file in (tmp_path / "tokens").iterdir()] == ["tokens.json"]
    assert open_tokens(tmp_path / "tokens").path == path
    with pytest.raises(ValueError, match=r"train\.bin contains tokens, not text to train a tokenizer on"):
        train_bpe(source.pieces(), 300)


def shortened(path: Path) -> None:
    os.truncate(path, 1998)


def written_again(path: Path) -> None:
    was = path.stat()
    with path.open("r+b") as file:
        file.write(b"z\0")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns + 1))


@pytest.mark.parametrize(("change", "sentence"), [
    (shortened, r"has changed since .*tokens.json was written: it has 1998 bytes, written 20.*, expected 2000 bytes"),
    (written_again, "has changed since .*: it has 2000 bytes, .*; restore the old file, or start another run"),
    (os.remove, "cannot be read: No such file or directory"),
])  # fmt: skip
def test_a_file_that_has_changed_is_named(path: Path, tmp_path: Path, change: Callable[[Path], None], sentence: str) -> None:
    open_source(path).tokens(ByteTokenizer(), tmp_path / "tokens")
    change(path)
    with pytest.raises(ValueError, match=rf"token file {path} {sentence}"):
        open_tokens(tmp_path / "tokens")


@pytest.mark.parametrize("wrong", [None, "x", -1, 10**99, True, [1]])
def test_a_record_with_a_damaged_time_is_reported_like_a_change(path: Path, tmp_path: Path, wrong: object) -> None:
    open_source(path).tokens(ByteTokenizer(), tmp_path / "tokens")
    record = json.loads((tmp_path / "tokens" / "tokens.json").read_text())
    (tmp_path / "tokens" / "tokens.json").write_text(json.dumps(record | {"mtime_ns": wrong}))
    with pytest.raises(ValueError, match=r"has changed since .*, expected 2000 bytes, written") as caught:
        open_tokens(tmp_path / "tokens")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("place", [0, 6, 7, 999])
def test_an_id_outside_the_tokenizers_vocabulary_is_named_with_its_position(path: Path, tmp_path: Path, place: int,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_tokens, "PIECE", 7)
    ids = np.fromfile(path, np.uint16)
    ids[place:] = 256
    ids.tofile(path)
    with pytest.raises(ValueError, match=rf"data {path} has the token 256 at byte {2 * place:,}, but .* only 256 tokens;"):
        open_source(path).tokens(ByteTokenizer(), tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


def test_a_tokenizer_with_more_ids_than_two_bytes_hold_is_refused(path: Path, tmp_path: Path) -> None:
    for largest, is_fine in ((65_535, True), (65_536, False)):
        words = tokenizers.models.WordLevel({"a": 0, "b": largest}, unk_token="a")
        tokenizer = HuggingFaceTokenizer(tokenizers.Tokenizer(words))
        if is_fine:
            assert len(open_source(path).tokens(tokenizer, tmp_path / "tokens")) == 1000
            continue
        with pytest.raises(ValueError, match="has ids of uint16, which cannot hold the 65,537 ids of the tokenizer"):
            open_source(path).tokens(tokenizer, tmp_path / "more")


def test_a_file_size_that_is_no_whole_number_of_ids_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for content in (b"", b"abc"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.bin has {len(content)} bytes, expected a multiple of 2 above 0, for ids of"):
            open_source(path)
    os.remove(path)
    with pytest.raises(ValueError, match=r"a\.bin cannot be read: No such file"):
        open_source(path)


@pytest.mark.timeout(10)
def test_a_bin_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.bin")
    with pytest.raises(ValueError, match="it is a pipe"):
        open_source(tmp_path / "pipe.bin")
    (tmp_path / "folder.bin").mkdir()
    (tmp_path / "folder.bin" / "a.txt").write_text("text")
    assert open_source(tmp_path / "folder.bin").is_text


def test_the_record_keeps_the_path_and_the_state_of_the_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_source("train.bin").tokens(ByteTokenizer(), tmp_path / "tokens")
    record = json.loads((tmp_path / "tokens" / "tokens.json").read_text())
    assert record == {"path": str(path), "nbytes": 2000, "mtime_ns": path.stat().st_mtime_ns, "dtype": "uint16",
                      "tokenizer": "bytes", "vocab_size": 256}  # fmt: skip
