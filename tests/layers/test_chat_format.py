"""Where a chat template is found, and which special tokens it may name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asynctile.layers.chat_format import ChatFormat, read_chat_files
from asynctile.layers.tokenizer import ByteTokenizer, parse_tokenizer
from tests.layers.llama_files import byte_level


def config(**values: object) -> dict[str, bytes]:
    return {"tokenizer_config.json": json.dumps(values).encode()}


def test_the_file_comes_before_the_config_and_a_named_file_before_both(tmp_path: Path) -> None:
    files = config(chat_template="of the config")
    assert ChatFormat.of(files, "m").template == "of the config"
    files["chat_template.jinja"] = b"of the folder"
    assert ChatFormat.of(files, "m").template == "of the folder"
    (tmp_path / "mine.jinja").write_text("mine")
    found = ChatFormat.of(files, "m", tmp_path / "mine.jinja")
    assert (found.template, found.files["chat_template.jinja"]) == ("mine", b"mine")
    assert (found.place, found.origin) == ("m", str(tmp_path / "mine.jinja"))


def test_the_origin_of_a_template_names_its_file() -> None:
    found = config(chat_template="a")
    assert ChatFormat.of(found, "m").origin == "m (tokenizer_config.json)"
    assert ChatFormat.of(found | {"chat_template.jinja": b"b"}, "m").origin == "m (chat_template.jinja)"


def test_of_several_templates_the_default_counts() -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert ChatFormat.of(config(chat_template=named), "m").template == "plain"


@pytest.mark.parametrize(("files", "sentence"), [
    ({}, r"^m has no chat template \(chat_template.jinja, or chat_template in tokenizer_config.json\); .* --chat-template$"),
    (config(chat_template=None), "m has no chat template"),
    (config(chat_template=[{"name": "a"}, 3]), "m has no chat template"),
    (config(chat_template=7), "tokenizer_config.json of m says chat_template 7, expected a string"),
    ({"tokenizer_config.json": b"{"}, "tokenizer_config.json of m is damaged: it is not JSON"),
    ({"chat_template.jinja": b"a\xff"}, r"the chat template of m \(chat_template.jinja\) is not text: byte 1 is not UTF-8"),
])  # fmt: skip
def test_a_missing_or_damaged_template_is_named(files: dict[str, bytes], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _ = ChatFormat.of(files, "m").template


def test_a_named_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--chat-template .*none.jinja cannot be read: No such file"):
        ChatFormat.of({}, "m", tmp_path / "none.jinja")


def test_special_tokens_are_those_of_the_files_as_strings_or_objects() -> None:
    special = {"special_tokens_map.json": json.dumps({"eos_token": "</e>", "unk_token": "<u>"}).encode()}
    values = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None, "model_max_length": 9, "unk_token": 3}
    assert ChatFormat.of(config(**values), "m").names(ByteTokenizer()) == {"bos_token": "<b>", "eos_token": "<e>"}
    assert ChatFormat.of(config(**values) | special, "m").names(ByteTokenizer()) == {
        "bos_token": "<b>", "eos_token": "</e>", "unk_token": "<u>"}  # fmt: skip
    files = config(**values, added_tokens_decoder={}) | special
    assert ChatFormat.of(files, "m").names(ByteTokenizer())["eos_token"] == "<e>"


def test_without_files_the_tokens_are_named_as_in_a_saved_model() -> None:
    tokenizer = parse_tokenizer(byte_level("<|begin_of_text|>", "<|end_of_text|>"), "t")
    names = ChatFormat.of({}, "m").names(tokenizer)
    assert names == {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}


def test_the_files_of_a_folder_are_read_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("t")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert read_chat_files(tmp_path) == {"chat_template.jinja": b"t"}
    (tmp_path / "tokenizer_config.json").mkdir()
    with pytest.raises(ValueError, match=r"tokenizer_config.json cannot be read: Is a directory; copy it again, or remove it"):
        read_chat_files(tmp_path)
