"""vocab.json with merges.txt: found by name, combined into one tokenizer.json, named if damaged or of another kind.

tests/reference/test_gpt2_tokenizer.py checks that ids are those of transformers.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from asynctile.errors import CheckpointError
from asynctile.layers.special_tokens import separator, token_ids
from asynctile.layers.tokenizer import has_tokenizer, load_tokenizer, open_tokenizer, train_bpe
from tests.layers.gpt2_files import END, TEXT, write_gpt2_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_gpt2_files(tmp_path, 300, {})
    return tmp_path


def test_a_folder_or_its_vocabulary_is_a_tokenizer(folder: Path) -> None:
    assert has_tokenizer(folder)
    trained = train_bpe([TEXT], 300)
    for opened in (load_tokenizer(str(folder), ()), load_tokenizer(str(folder / "vocab.json"), ()), open_tokenizer(folder)):
        assert (opened.vocab_size, opened.special) == (301, {END: 300})
        assert opened.encode(TEXT).tolist() == trained.encode(TEXT).tolist()
        assert opened.encode(f"the{END}").tolist() == [*trained.encode("the").tolist(), 300]
        assert separator(opened).tolist() == [300] and token_ids(opened) == {"bos_token_id": 300, "eos_token_id": 300}


def test_a_tokenizer_json_beside_them_wins_for_the_folder(folder: Path) -> None:
    train_bpe([TEXT], 280).save(folder)
    assert open_tokenizer(folder).vocab_size == load_tokenizer(str(folder), ()).vocab_size == 280
    assert load_tokenizer(str(folder / "vocab.json"), ()).vocab_size == 301


def test_a_token_missing_from_all_files_is_not_added(tmp_path: Path) -> None:
    write_gpt2_files(tmp_path, 300, {}, end=False)
    opened = open_tokenizer(tmp_path)
    assert (opened.vocab_size, opened.special) == (300, {})
    write_gpt2_files(tmp_path, 300, {"special_tokens_map.json": {"eos_token": END}}, end=False)
    assert open_tokenizer(tmp_path).special == {END: 300}


def test_line_endings_and_a_header_line_do_not_matter(folder: Path) -> None:
    expected = open_tokenizer(folder).fingerprint
    lines = (folder / "merges.txt").read_text()
    for content in (lines.replace("\n", "\r\n"), lines.partition("\n")[2], lines.removesuffix("\n")):
        (folder / "merges.txt").write_bytes(content.encode())
        assert open_tokenizer(folder).fingerprint == expected


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("vocab.json", "[1]", r"vocab\.json contains \[1\], expected a JSON object"),
    ("vocab.json", "{", r"vocab\.json is not valid JSON"),
    ("vocab.json", '{"a": -1}', "gives the token 'a' the id -1, expected an int from 0"),
    ("vocab.json", '{"a": true}', "the id True"), ("vocab.json", '{"a": 2147483648}', "the id 2147483648"),
    ("vocab.json", '{"a": 0, "b": 0}', "gives two tokens the same id"),
    ("vocab.json", '{"a": 0, "b": 1}', r"vocab\.json is not a vocab\.json with merges\.txt \(.*out of vocabulary"),
    ("merges.txt", "#version: 0.2\na b c\n", r"merges\.txt, line 2, is 'a b c', expected two tokens with a space between"),
    ("merges.txt", "a\n", "line 1, is 'a'"), ("merges.txt", "a \n", "line 1, is 'a '"),
    ("merges.txt", b"\xff", "is not valid UTF-8: the first invalid byte is at offset 0"),
    ("tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer"}, "tokenizer_class 'CLIPTokenizer', expected GPT2Tokenizer"),
    ("tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens, which is not supported"),
    ("tokenizer_config.json", {"add_prefix_space": 1}, "add_prefix_space 1, expected true or false"),
    ("tokenizer_config.json", {"eos_token": 5}, "the eos_token is 5, expected a token"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "<x>"}}}, "'<x>' has the id 'x', expected an int"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"305": {"content": "<x>"}}}, "'<x>' has the id 305, expected 301"),
    ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "expected tokens by id"),
    ("special_tokens_map.json", {"eos_token": {"content": "<x>", "lstrip": 1}}, "expected true or false for each of"),
    ("special_tokens_map.json", {"eos_token": {"content": ""}}, "expected a token"),
    ("special_tokens_map.json", {"additional_special_tokens": [1]}, "the additional_special_tokens is 1"),
    ("special_tokens_map.json", {"additional_special_tokens": "abc"}, "additional_special_tokens is 'abc', expected a list"),
    ("added_tokens.json", {"<x>": "5"}, "'<x>' has the id '5'"),
    ("added_tokens.json", {"<x>": 3}, "'<x>' has the id 3, expected 301"),
])  # fmt: skip
def test_a_file_that_is_damaged_or_of_another_kind_is_named(folder: Path, name: str, content: Any, sentence: str) -> None:
    whole = content if isinstance(content, str | bytes) else json.dumps(content)
    (folder / name).write_bytes(whole if isinstance(whole, bytes) else whole.encode())
    with pytest.raises(ValueError, match=rf"^tokenizer {folder}.*{sentence}") as caught:
        load_tokenizer(str(folder), ())
    assert str(caught.value).isprintable() and len(str(caught.value)) < 900
    with pytest.raises(CheckpointError, match=sentence):
        open_tokenizer(folder)


def test_a_vocabulary_with_gaps_accepts_no_further_tokens(folder: Path) -> None:
    vocab = json.loads((folder / "vocab.json").read_text())
    vocab[END] = 301
    (folder / "vocab.json").write_text(json.dumps(vocab))
    assert load_tokenizer(str(folder), ()).special == {END: 301}
    (folder / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    with pytest.raises(ValueError, match=r"vocab\.json has 301 tokens and uses id 301, which the added token"):
        load_tokenizer(str(folder), ())


@pytest.mark.timeout(10)
def test_missing_files_and_special_files_are_named(folder: Path) -> None:
    os.remove(folder / "merges.txt")
    assert not has_tokenizer(folder)
    with pytest.raises(ValueError, match=r"is a folder with neither tokenizer\.json nor vocab\.json and merges\.txt; expected"):
        load_tokenizer(str(folder), ())
    with pytest.raises(ValueError, match=rf"tokenizer {folder} has no merges\.txt; expected"):
        load_tokenizer(str(folder / "vocab.json"), ())
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json"):
        open_tokenizer(folder)
    os.mkfifo(folder / "merges.txt")
    with pytest.raises(ValueError, match=r"merges\.txt cannot be read: it is a pipe"):
        load_tokenizer(str(folder / "vocab.json"), ())
    with pytest.raises(CheckpointError, match=r"merges\.txt.*it is a pipe"):
        open_tokenizer(folder)
