"""Tokenizers: bytes, tokenizer.json, and a BPE trained on the spot."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from asynctile.layers import tokenizer_trial
from asynctile.layers.tokenizer import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    load_tokenizer,
    open_tokenizer,
    train_bpe,
)
from asynctile.storage.errors import CheckpointError

TEXT = "def forward(self, x):\n    return self.linear(x)  # žluťoučký kůň 😀\n" * 20


@given(st.text())
def test_any_text_comes_back_from_bytes(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_bytes_that_are_not_utf8_are_no_error():
    assert ByteTokenizer().encode(b"\xff\x00").tolist() == [255, 0]
    assert ByteTokenizer().decode([0x41, 0xFF]) == "A\ufffd"
    assert train_bpe([TEXT], 300).encode(b"a\xff").dtype == np.uint16


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), train_bpe([TEXT], 260)])
def test_ids_outside_the_vocabulary_are_named(tokenizer):
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"token id {wrong} .* 0 to {tokenizer.vocab_size - 1}"):
            tokenizer.decode([65, wrong])


def test_a_trained_bpe_is_shorter_reversible_and_reproducible():
    tokenizer = train_bpe([TEXT], 300)
    assert 256 < tokenizer.vocab_size <= 300
    ids = tokenizer.encode(TEXT)
    assert len(ids) < len(TEXT.encode()) / 2
    assert ids.max() < tokenizer.vocab_size
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode(tokenizer.encode("日本 never seen")) == "日本 never seen"
    assert train_bpe([TEXT.encode()], 300).fingerprint == tokenizer.fingerprint
    assert train_bpe([TEXT], 290).fingerprint != tokenizer.fingerprint


def test_a_saved_tokenizer_opens_again(tmp_path):
    for n, tokenizer in enumerate([ByteTokenizer(), train_bpe([TEXT], 300)]):
        folder = tmp_path / str(n)
        folder.mkdir()
        tokenizer.save(folder)
        again = open_tokenizer(folder)
        assert type(again) is type(tokenizer)
        assert again.fingerprint == tokenizer.fingerprint
        assert again.vocab_size == tokenizer.vocab_size
        np.testing.assert_array_equal(again.encode(TEXT), tokenizer.encode(TEXT))


def test_other_programs_read_saved_bytes_with_the_same_ids(tmp_path):
    ByteTokenizer().save(tmp_path)
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert other.encode(TEXT).ids == list(TEXT.encode())
    assert other.decode(list(TEXT.encode())) == TEXT
    every = "".join(map(chr, range(0x800)))
    assert other.encode(every).ids == list(every.encode())


def test_texts_are_not_extended_cut_or_padded(tmp_path):
    raw = tokenizers.Tokenizer.from_str(train_bpe([TEXT], 300).to_json().decode())
    raw.add_special_tokens(["<s>"])
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", raw.token_to_id("<s>"))]
    )
    raw.enable_truncation(5)
    raw.enable_padding(length=64)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"), ())
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"
    assert tokenizer.vocab_size == raw.token_to_id("<s>") + 1


def test_a_large_vocabulary_takes_wider_ids():
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 70_000}, unk_token="a"))
    tokenizer = HuggingFaceTokenizer(raw)
    assert tokenizer.vocab_size == 70_001
    assert tokenizer.encode("b").dtype == np.uint32


def test_users_name_a_tokenizer_by_word_size_or_file(tmp_path):
    assert isinstance(load_tokenizer("bytes", iter(())), ByteTokenizer)
    trained = load_tokenizer("bpe:300", [TEXT])
    trained.save(tmp_path)
    assert load_tokenizer(str(tmp_path / "tokenizer.json"), iter(())).fingerprint == trained.fingerprint
    ByteTokenizer().save(tmp_path)
    assert isinstance(load_tokenizer(str(tmp_path / "tokenizer.json"), iter(())), ByteTokenizer)


@pytest.mark.parametrize(
    "spec", ["", "byte", "bpe", "bpe:", "bpe:-5", "bpe:255", "bpe:1e9", "bpe:99999999", "none.json", "/"]
)
def test_other_names_are_refused_in_one_line(spec):
    with pytest.raises(ValueError, match='expected "bytes"') as caught:
        load_tokenizer(spec, [TEXT])
    assert repr(spec) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_below_the_bytes_is_refused():
    for size in (255, 0, True, 300.0):
        with pytest.raises(ValueError, match="256"):
            train_bpe([TEXT], size)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "{", '{"model": {"type": "what"}}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer\.json"):
        load_tokenizer(str(path), [])
    with pytest.raises(CheckpointError, match=r"tokenizer"):
        open_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json"):
        open_tokenizer(tmp_path)


def bpe(**changes):
    return {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], **changes}}


#: Each makes the library panic, or refuse.
WRONG = [
    bpe() | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    bpe(continuing_subword_prefix="##########"),
    bpe(merges=["a c"]), bpe(dropout=5.0), bpe(vocab={"a": -1}), bpe(vocab={"a": 10**400}),
    bpe() | {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
    {"version": "1.0", "model": {"type": "Unigram", "unk_id": 5, "vocab": []}},
]  # fmt: skip


@pytest.mark.parametrize("wrong", [*WRONG, "[" * 100_000, '{"a":' * 100_000, "\0" * 1000])
def test_a_file_that_makes_the_library_panic_is_refused_in_one_sentence_without_print(tmp_path, capfd, wrong):
    path = tmp_path / "tokenizer.json"
    path.write_text(wrong if isinstance(wrong, str) else json.dumps(wrong))
    with pytest.raises(ValueError, match=r"tokenizer .*tokenizer\.json is not a tokenizer\.json \(.+\); expected") as caught:
        load_tokenizer(str(path), ())
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        open_tokenizer(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_without_tokens_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(bpe(vocab={}, merges=[])))
    with pytest.raises(ValueError, match=r"tokenizer\.json has no tokens; expected"):
        load_tokenizer(str(tmp_path / "tokenizer.json"), ())


def test_a_text_outside_the_vocabulary_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}))
    tokenizer = load_tokenizer(str(path), ())
    assert tokenizer.encode("a").tolist() == [0]
    with pytest.raises(ValueError, match=r"cannot encode the text .*Missing"):
        tokenizer.encode("b")


def test_a_later_panic_is_a_sentence_and_other_exits_of_the_program_pass():
    class PanicException(BaseException):
        pass

    trained = tokenizers.Tokenizer.from_str(train_bpe(["a b"], 256).to_json().decode())
    for raised, expected in [(PanicException, ValueError), (Exception, ValueError), (KeyboardInterrupt, KeyboardInterrupt)]:

        class Broken:
            def __getattr__(self, name):
                return getattr(trained, name)

            def encode(self, *_, raised=raised, **__):
                raise raised("why")

        with pytest.raises(expected, match="why"):
            HuggingFaceTokenizer(Broken()).encode("a")


def test_a_library_that_hangs_or_dies_is_reported_in_a_sentence(tmp_path, monkeypatch):
    python = tmp_path / "python3"
    python.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(tokenizer_trial, "PATIENCE_S", 0.2)
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    assert tokenizer_trial.refusal(b"{}") == "the library needs more than 0.2 s to read it"
    monkeypatch.setattr(tokenizer_trial, "PATIENCE_S", 60)
    python.write_text("#!/bin/sh\nkill -ABRT $$\n")
    assert tokenizer_trial.refusal(b"{}") == "the library ended with status -6 while reading it"


@pytest.fixture(params=["unknown", "empty", "a service", "not there", "not started"])
def no_process(request, tmp_path, monkeypatch):
    """A machine on which no other process can read a file first, and nobody restarts the service."""
    service, started = tmp_path / "uwsgi", tmp_path / "started"
    service.write_text(f"#!/bin/sh\ntouch {started}\n")
    service.chmod(0o755)
    (tmp_path / "python3").touch()  # cannot be executed
    gone, locked = tmp_path / "python", tmp_path / "python3"
    path = {"unknown": None, "empty": "", "a service": service, "not there": gone, "not started": locked}[request.param]
    monkeypatch.setattr(sys, "executable", path if path is None else str(path))
    yield
    assert not started.exists()


def test_without_another_process_a_tokenizer_is_read_and_a_panic_is_a_sentence(no_process, tmp_path):
    path = tmp_path / "tokenizer.json"
    trained = train_bpe([TEXT], 300)
    path.write_bytes(trained.to_json())
    assert load_tokenizer(str(path), ()).fingerprint == trained.fingerprint
    expected = r"tokenizer .*tokenizer\.json (is not a tokenizer\.json \(.+\)|has no tokens); expected"
    for wrong in WRONG:
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=expected) as caught:
            load_tokenizer(str(path), ())
        assert str(caught.value).isprintable() and len(str(caught.value)) < 600


@pytest.mark.timeout(10)
def test_a_tokenizer_must_be_a_regular_file_of_limited_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").touch()
    os.truncate(tmp_path / "long", 1 << 40)
    with pytest.raises(ValueError, match="neither a known name nor a file"):
        load_tokenizer(str(tmp_path / "pipe"), ())
    with pytest.raises(ValueError, match=r"long cannot be read: it has 1\.00 TiB, expected at most 128\.00 MiB"):
        load_tokenizer(str(tmp_path / "long"), ())
    os.rename(tmp_path / "pipe", tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match="it is a pipe"):
        open_tokenizer(tmp_path)
