"""From text to tokens, which are made once and kept. test_text.py tests sources of text, test_data.py batches of tokens."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from asynctile.layers.text import TextSource
from asynctile.layers.tokenizer import ByteTokenizer, train_bpe
from asynctile.layers.tokens import TokenFile, open_tokens, tokenise
from asynctile.storage.errors import CheckpointError
from asynctile.storage.inside import Folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    for letter in "acz":
        (tmp_path / "data" / f"{letter}.txt").write_text(2 * letter)
    return tmp_path / "data"


def test_tokens_are_written_once_and_reused_only_for_the_same_text_and_tokenizer(
    folder, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    seen = []
    file = tokenise(
        TextSource(folder), ByteTokenizer(), cache, progress=lambda done, total: seen.append((done, total))
    )
    assert file[:].tobytes() == np.frombuffer(b"aacczz", np.uint8).astype(np.uint16).tobytes()
    assert seen[-1] == (6, 6)
    assert sorted(os.listdir(cache)) == ["tokens.bin", "tokens.json"]

    made, put_in_place = [], Folder.put_in_place
    monkeypatch.setattr(Folder, "put_in_place", lambda self, part, name: made.append(name) or put_in_place(self, part, name))
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 6
    assert made == []

    bpe = train_bpe(["aa cc zz"] * 3, 260)
    assert len(tokenise(TextSource(folder), bpe, cache)) < 6
    assert made == ["tokens.bin", "tokens.json"]
    (folder / "d.txt").write_text("dd")
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 8
    os.truncate(cache / "tokens.bin", 6)
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 8
    (cache / "tokens.json").write_text("{")
    assert len(tokenise(TextSource(folder), ByteTokenizer(), cache)) == 8
    assert made.count("tokens.bin") == 4


def test_a_failure_while_making_tokens_leaves_the_old_ones(folder, tmp_path):
    tokenise(TextSource(folder), ByteTokenizer(), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("tokens.bin", "tokens.json")}
    (folder / "d.txt").write_text("dd")

    def fail(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenise(TextSource(folder), ByteTokenizer(), tmp_path, progress=fail)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert sorted(os.listdir(tmp_path)) == ["data", "tokens.bin", "tokens.json"]


def test_a_token_file_of_the_wrong_size_is_named(tmp_path):
    for content in (b"", b"abc"):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(ValueError, match=f"has {len(content)} bytes, expected a multiple of 2"):
            TokenFile(tmp_path / "t", np.uint16)
    with pytest.raises(ValueError, match="cannot be read"):
        TokenFile(tmp_path / "none", np.uint16)


def test_a_full_disk_is_reported_with_the_name_of_the_token_file(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("some text")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        tokenise(TextSource(tmp_path / "text"), ByteTokenizer(), tmp_path / "tokens")
    assert caught.value.filename == str(tmp_path / "tokens" / "tokens.bin")
    assert list((tmp_path / "tokens").iterdir()) == []


def test_a_file_that_shrinks_raises_an_error_instead_of_killing_the_process(tmp_path, monkeypatch):
    np.arange(20_000, dtype=np.uint16).tofile(tmp_path / "t")
    file = TokenFile(tmp_path / "t", np.uint16)
    read = os.preadv
    monkeypatch.setattr("os.preadv", lambda fd, parts, place: read(fd, [memoryview(parts[0]).cast("B")[:7]], place))
    early = file[100:200]
    assert file[15_000:15_003].tolist() == [15_000, 15_001, 15_002]
    assert file[19_999:30_000].tolist() == [19_999] and file[7:3].size == 0
    os.truncate(tmp_path / "t", 30_001)
    assert early.tolist() == file[100:200].tolist() == list(range(100, 200))
    with pytest.raises(CheckpointError, match="is now shorter than the 40000 bytes that it had"):
        file[14_990:15_010]


RECORD = {"dtype": "uint16", "nbytes": 8}


@pytest.mark.parametrize(("record", "error", "sentence"), [
    ({}, CheckpointError, r"tokens\.json is damaged: it has the dtype None, expected uint16 or uint32"),
    (RECORD | {"dtype": "V0"}, CheckpointError, "dtype 'V0'"),
    (RECORD | {"dtype": "float32"}, CheckpointError, "dtype 'float32'"),
    (RECORD | {"dtype": ["uint16"]}, CheckpointError, "dtype"), (RECORD | {"dtype": {}}, CheckpointError, "dtype"),
    ([1], CheckpointError, "dtype None"), (RECORD | {"nbytes": 10**99}, ValueError, r"tokens\.bin has 8 bytes, .* says 10000"),
    (RECORD | {"nbytes": None}, ValueError, "says None"),
    (RECORD | {"dtype": "uint32", "nbytes": 4}, ValueError, "has 8 bytes"),
    (RECORD | {"path": 5}, CheckpointError, "has the path 5, expected a string"),
    (RECORD | {"path": "a\0b"}, ValueError, "no file can have this name"),
    (RECORD | {"path": "/dev/zero"}, ValueError, "it is a device"), (RECORD | {"path": "/"}, ValueError, "Is a directory"),
    (RECORD | {"path": __file__, "dtype": "uint16"}, ValueError, "expected a multiple|has changed since"),
])  # fmt: skip
def test_a_damaged_record_of_tokens_is_named(tmp_path, record, error, sentence):
    (tmp_path / "tokens.bin").write_bytes(bytes(8))
    (tmp_path / "tokens.json").write_text(json.dumps(RECORD))
    assert open_tokens(tmp_path)[:].tolist() == [0] * 4
    (tmp_path / "tokens.json").write_text(json.dumps(record))
    with pytest.raises(error, match=sentence):
        open_tokens(tmp_path)


@pytest.mark.timeout(10)
def test_a_special_token_file_or_one_of_another_length_is_named(tmp_path):
    (tmp_path / "tokens.json").write_text(json.dumps(RECORD))
    os.mkfifo(tmp_path / "tokens.bin")
    with pytest.raises(ValueError, match=r"tokens\.bin cannot be read: it is a pipe"):
        open_tokens(tmp_path)
    os.remove(tmp_path / "tokens.bin")
    (tmp_path / "tokens.bin").touch()
    os.truncate(tmp_path / "tokens.bin", 1 << 40)
    with pytest.raises(ValueError, match=rf"tokens\.bin has {1 << 40} bytes"):
        open_tokens(tmp_path)
