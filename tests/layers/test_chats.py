"""From lines of chats to ids and answers: by hand for three templates without {% generation %}, and every bad line.

tests/reference/test_chats.py compares with transformers; test_chat_renderer.py tests templates.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile.layers import chat_renderer, chats
from asynctile.layers.chat_format import ChatFormat, read_chat_files
from asynctile.layers.chats import ChatSource, encode_answers
from asynctile.layers.data_source import open_source
from asynctile.layers.examples import Example, ExampleFile
from asynctile.layers.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer
from tests.layers.chats import SHORT, chat, template, write_lines, write_tokenizer


def made(path: Path, folder: Path, source: str = SHORT, *, seq_len: int = 500) -> ExampleFile:
    """Return the examples of the chats at `path`, kept in `folder`."""
    format = ChatFormat({"chat_template.jinja": source.encode()}, "m")
    found = open_source(path)
    assert isinstance(found, ChatSource)
    return found.examples(ByteTokenizer(), format, seq_len, folder)


def learned(example: Example, tokenizer: Tokenizer) -> list[str]:
    """Return the texts of an example's answers."""
    pairs = zip(example.ids.tolist(), example.answers.tolist(), strict=True)
    return [tokenizer.decode([id for id, _ in run]) for is_answer, run in groupby(pairs, lambda pair: pair[1]) if is_answer]


@pytest.mark.parametrize(("style", "text", "answers"), [
    ("ChatML", "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n<|im_start|>user\n1234<|im_end|>\n"
               "<|im_start|>assistant\n \u017e<|im_end|>\n", ["I.<|im_end|>\n", " \u017e<|im_end|>\n"]),
    ("Llama 3", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant"
                "<|end_header_id|>\n\nI.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1234<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n\u017e<|eot_id|>", ["I.<|eot_id|>", "\u017e<|eot_id|>"]),
    ("Mistral", "<s>[INST] Who? [/INST] I.</s>[INST] 1234 [/INST]  \u017e</s>", [" I.</s>", "  \u017e</s>"]),
])  # fmt: skip
def test_answers_of_templates_without_generation_are_those_found_by_hand(
    tmp_path: Path, style: str, text: str, answers: list[str]
) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer", style, template(style, is_marked=False))
    tokenizer, source = open_tokenizer(folder), open_source(
        write_lines(tmp_path / "a.jsonl", [{"messages": chat("Who?", "I.", "1234", " \u017e")}]))  # fmt: skip
    assert isinstance(source, ChatSource)
    format = ChatFormat.of(read_chat_files(folder), "m")
    example = source.examples(tokenizer, format, 200, tmp_path / "tokens")[0]
    assert example.ids.tolist() == tokenizer.encode(text).tolist()
    # The decoder of SentencePiece drops the space that begins a text.
    assert learned(example, tokenizer) == [answer[style == "Mistral" :] for answer in answers]


def test_a_token_counts_if_it_covers_a_character_of_an_answer(tmp_path: Path) -> None:
    text = "a\u017e\U0001f600b"
    ids, answers = encode_answers(ByteTokenizer(), text, [(1, 2), (3, 4)])
    assert bytes(ids.tolist()) == text.encode()
    assert answers.tolist() == [False, True, True, False, False, False, False, True]
    assert not encode_answers(ByteTokenizer(), text, [])[1].any()
    tokenizer = open_tokenizer(write_tokenizer(tmp_path / "t", "Llama 3", ""))
    whole = encode_answers(tokenizer, "The tile moved", [(5, 6)], around=True)
    assert [tokenizer.decode([id]) for id in whole.ids[whole.answers]] == [" tile"]
    assert whole.ids[0] == tokenizer.special["<|begin_of_text|>"] and not whole.answers[0]


def test_half_a_surrogate_pair_is_replaced_and_moves_no_answer(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"messages": chat("\ud800", "I\udfff.")}])
    example = made(tmp_path / "a.jsonl", tmp_path / "tokens")[0]
    assert learned(example, ByteTokenizer()) == ["I\ufffd.\n"]


def test_a_prompt_is_encoded_as_generate_encodes_it_and_its_completion_ends(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(write_tokenizer(tmp_path / "t", "Llama 3", template("Llama 3", is_marked=True)))
    write_lines(tmp_path / "a.jsonl", [{"prompt": "The tile", "completion": " moved."}, {"prompt": "", "completion": "The"}])
    source = open_source(tmp_path / "a.jsonl")
    assert isinstance(source, ChatSource)
    found = source.examples(tokenizer, ChatFormat.of(read_chat_files(tmp_path / "t"), "m"), 99, tmp_path / "tokens")
    texts = [tokenizer.decode(found[index].ids) for index in range(2)]
    assert texts == ["<|begin_of_text|>The tile moved.<|eot_id|>", "<|begin_of_text|>The<|eot_id|>"]
    assert [learned(found[index], tokenizer) for index in range(2)] == [[" moved.<|eot_id|>"], ["The<|eot_id|>"]]
    plain = made(tmp_path / "a.jsonl", tmp_path / "bytes")
    assert bytes(plain[0].ids.tolist()) == b"The tile moved."


def test_a_message_may_have_no_content_if_it_calls_a_tool(tmp_path: Path) -> None:
    source = "{% for m in messages %}{{ m.content or (m.tool_calls | tojson) }};{% endfor %}{{ (tools or []) | length }}"
    calls = {"role": "assistant", "content": None, "tool_calls": [{"name": "move"}]}
    write_lines(tmp_path / "a.jsonl", [{"messages": [*chat("go"), calls, {"role": "tool", "content": "done"}], "tools": [{}]}])
    with pytest.raises(ValueError, match="is no beginning"):
        made(tmp_path / "a.jsonl", tmp_path / "tokens", source)
    example = made(tmp_path / "a.jsonl", tmp_path / "tokens", "{% generation %}" + source + "{% endgeneration %}")[0]
    assert ByteTokenizer().decode(example.ids) == 'go;[{"name": "move"}];done;1'


def test_the_kind_of_lines_is_told_by_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for line, is_chat in (({"messages": []}, True), ({"prompt": 1, "completion": 2}, True), ({"prompt": "a"}, False),
                          ({"messages": [], "text": "a"}, False), ([], False), ("messages", False)):  # fmt: skip
        path.write_text("\n \n" + json.dumps(line))
        assert isinstance(open_source(path), ChatSource) is is_chat
        (tmp_path / "a.txt").write_bytes(path.read_bytes())
        assert not isinstance(open_source(tmp_path / "a.txt"), ChatSource)
    path.write_text('{"messages": [], "text": "a"}')
    assert isinstance(open_source(path, "messages"), ChatSource)
    path.write_text('{"messages": 1')
    assert not isinstance(open_source(path), ChatSource)


def test_a_folder_of_chats_is_read_in_sorted_order_and_with_other_files_it_is_text(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in "ba":
        write_lines(folder / f"{name}.jsonl", [{"messages": chat(name, "I.")}] * 2)
    found = made(folder, tmp_path / "tokens")
    assert [bytes(found[index].ids.tolist())[2:3] for index in range(len(found))] == [b"a", b"a", b"b", b"b"]
    (folder / "c.txt").write_text("text")
    assert not isinstance(open_source(folder), ChatSource)


def test_a_tokenizer_is_trained_on_what_was_said(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"messages": chat("a", "b\ud800")}, {"messages": chat("c", "")}])
    assert list(open_source(tmp_path / "a.jsonl").pieces()) == [b"a", "b\ufffd".encode(), b"c", b""]
    write_lines(tmp_path / "a.jsonl", [{"prompt": "a", "completion": "b"}])
    assert list(open_source(tmp_path / "a.jsonl").pieces()) == [b"a", b"b"]


GOOD = {"messages": chat("a", "b")}


def said(**message: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "a"}, message]}


@pytest.mark.parametrize(("line", "sentence"), [
    ({"messages": 7}, "has 7 as 'messages', expected a list of messages"),
    ({"messages": []}, r"has \[\] as 'messages'"), ({"messages": {"role": "user"}}, "has {'role': 'user'} as 'messages'"),
    ({"messages": ["a"]}, "message 1, is 'a', expected an object with role and content"),
    (said(role="gpt", content="b"), "message 2, has the role 'gpt', expected system, developer, user, assistant or tool"),
    (said(content="b"), "message 2, has the role None"),
    (said(role=["user"], content="b"), r"message 2, has the role \['user'\]"),
    (said(role="assistant"), r"message 2, has None as content, expected a string \(pictures"),
    (said(role="assistant", content=3), "message 2, has 3 as content"),
    (said(role="assistant", content=[{"type": "text"}]), r"message 2, has \[\{'type': 'text'\}\] as content"),
    (said(role="system", content="b"), "has no message of the role assistant, so there is nothing to learn"),
    (GOOD | {"tools": "a"}, "has 'a' as 'tools', expected a list of tools"),
    ({"prompt": "a", "completion": "b"}, r"has no field 'messages' \(it has 'prompt', 'completion'\), which the first"),
    (["a"], r"is \['a'\], expected an object with the field 'messages'"),
])  # fmt: skip
def test_a_bad_line_is_named_with_what_to_do(tmp_path: Path, line: object, sentence: str) -> None:
    write_lines(tmp_path / "a.jsonl", [GOOD, line])
    with pytest.raises(ValueError, match=rf"^data {tmp_path}/a\.jsonl, line 2, {sentence}.*; correct the line, or remove it$"):
        made(tmp_path / "a.jsonl", tmp_path / "tokens")
    assert list((tmp_path / "tokens").iterdir()) == []


@pytest.mark.parametrize(("line", "sentence"), [
    ({"prompt": [], "completion": "b"}, r"has \[\] as 'prompt', expected a string; give chats as messages"),
    ({"prompt": "a", "completion": None}, "has None as 'completion', expected a string"),
    ({"prompt": "a", "completion": ""}, "has an empty completion, so there is nothing to learn"),
    ({"prompt": "a"}, r"has no field 'completion' \(it has 'prompt'\)"),
])  # fmt: skip
def test_a_bad_completion_is_named(tmp_path: Path, line: object, sentence: str) -> None:
    write_lines(tmp_path / "a.jsonl", [{"prompt": "a", "completion": "b"}, line])
    with pytest.raises(ValueError, match=rf"line 2, {sentence}"):
        made(tmp_path / "a.jsonl", tmp_path / "tokens")


@pytest.mark.parametrize(("source", "sentence"), [
    ("{{ raise_exception('no ' + messages[0].content) }}", r"cannot be rendered: the chat template of m \(.*\): no a; correct"),
    ("{% for m in messages %}{% if m.role == 'user' %}{% generation %}{% endgeneration %}{% endif %}{% endfor %}",
     "has no token of an answer"),
    ("{{ messages[0].content }}", "has no token of an answer"),
    ("{% generation %}a{% endgeneration %}bc", "has no token of an answer"),
    (f"{'{% for a in range(99999) %}' * 3}{'{% endfor %}' * 3}", "cannot be rendered: .* takes more than 0.2 s"),
])  # fmt: skip
def test_a_template_that_finds_no_answer_is_reported_with_the_line(
    tmp_path: Path, source: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token of an example is no target: nothing comes before it."""
    monkeypatch.setattr(chat_renderer, "PATIENCE_S", 0.2)
    write_lines(tmp_path / "a.jsonl", [GOOD])
    with pytest.raises(ValueError, match=rf"^data .*a\.jsonl, line 1, {sentence}"):
        made(tmp_path / "a.jsonl", tmp_path / "tokens", source)


def test_a_file_that_vanishes_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [GOOD])
    source = open_source(path)
    assert isinstance(source, ChatSource)
    path.unlink()
    with pytest.raises(ValueError, match=r"data .*a\.jsonl cannot be read: No such file or directory; restore it"):
        source.examples(ByteTokenizer(), ChatFormat({"chat_template.jinja": SHORT.encode()}, "m"), 9, tmp_path / "tokens")


def test_a_tokenizer_without_places_of_tokens_is_refused() -> None:
    class Other(ByteTokenizer):
        pass

    assert encode_answers(Other(), "ab", [(0, 1)]).answers.tolist() == [True, False]
    with pytest.raises(TypeError, match="does not tell which characters a token covers"):
        encode_answers(object(), "ab", [])  # type: ignore[arg-type]


def test_progress_reaches_the_size_of_the_files(tmp_path: Path) -> None:
    path, seen = write_lines(tmp_path / "a.jsonl", [GOOD] * 3), list[tuple[int, int]]()
    source = open_source(path)
    assert isinstance(source, ChatSource)
    format = ChatFormat({"chat_template.jinja": SHORT.encode()}, "m")
    source.examples(ByteTokenizer(), format, 99, tmp_path / "tokens", progress=lambda *counts: seen.append(counts))
    size = path.stat().st_size
    assert seen == [(size // 3 * n, size) for n in (1, 2, 3)]


def test_examples_are_made_once_for_the_same_chats_template_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tokens = write_lines(tmp_path / "a.jsonl", [GOOD] * 3), tmp_path / "tokens"
    opened: list[Any] = []

    class Counted(chat_renderer.Renderer):
        def __init__(self, *words: Any) -> None:
            opened.append(words)
            super().__init__(*words)

    monkeypatch.setattr(chats, "Renderer", Counted)
    first = made(path, tokens)
    assert len(made(path, tokens)) == len(first) == 3 and len(opened) == 1
    made(path, tokens, seq_len=499)
    made(path, tokens, "{# other #}" + SHORT, seq_len=499)
    write_lines(path, [GOOD] * 4)
    assert len(made(path, tokens, "{# other #}" + SHORT, seq_len=499)) == 4 and len(opened) == 4
    (tokens / "answers.bin").write_bytes(b"1")
    np.testing.assert_array_equal(made(path, tokens, seq_len=499)[3].ids, first[0].ids)
