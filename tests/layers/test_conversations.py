"""Chats that a program has in memory: the rows and targets that `asynctile train` makes of the same chats, and prompts."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynctile.layers import ByteTokenizer, Chats, open_tokenizer
from asynctile.layers.chat_format import ChatFormat, read_chat_files
from asynctile.layers.chats import ChatSource
from asynctile.layers.data_source import open_source, training_batches, whole
from asynctile.layers.example_batches import ExampleBatches
from tests.layers.chats import SHORT, chat, chats_by_chance, template, write_lines, write_tokenizer

FILES = {"chat_template.jinja": SHORT.encode()}


def test_rows_are_those_that_a_run_trains_on(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer", "ChatML", template("ChatML", is_marked=False))
    tokenizer, files = open_tokenizer(folder), read_chat_files(folder)
    known = chats_by_chance(6, 3)
    source = open_source(write_lines(tmp_path / "a.jsonl", [{"messages": messages} for messages in known]))
    assert isinstance(source, ChatSource)
    examples = source.examples(tokenizer, ChatFormat.of(files, "m"), 90, tmp_path / "tokens")
    packed = training_batches(whole(examples), 1, 90, seed=1)
    assert isinstance(packed, ExampleBatches)
    trained = {pair for number in range(packed.of_pass) for pair in _examples(*packed.batch(number))}
    with Chats(files, tokenizer) as chats:
        tokens, targets = chats.batch(known, 90)
    assert trained == {pair for row in zip(tokens, targets, strict=True) for pair in _examples(*(part[None] for part in row))}


def _examples(tokens: Any, targets: Any, positions: Any = None) -> set[tuple[bytes, bytes]]:
    """Return the tokens and targets of each example of rows, without the ignored ones at its end."""
    rows = zip(tokens, targets, [[0]] * len(tokens) if positions is None else positions, strict=True)
    found = set()
    for ids, wanted, places in rows:
        begins = [*np.flatnonzero(np.asarray(places) == 0), len(ids)]
        for begin, end in pairwise(begins):
            counted = np.flatnonzero(wanted[begin:end] != -100)
            if counted.size:
                last = begin + counted[-1] + 1
                found.add((ids[begin:last].tobytes(), wanted[begin:last].tobytes()))
    return found


def test_targets_are_the_answers_and_rows_are_as_short_as_they_can_be() -> None:
    with Chats(FILES, ByteTokenizer()) as chats:
        tokens, targets = chats.batch([chat("Who?", "I."), chat("a", "b")], 80)
        assert chats.batch([chat("a", "b" * 90)], 80)[0].shape == (1, 80)
    assert tokens.shape == targets.shape == (2, 20) and tokens.dtype == targets.dtype == np.int64
    assert bytes(tokens[0, :12].tolist()) == b"u:Who?\na:I.\n"[:-1] + b"\0" and not tokens[0, 11:].any()
    assert [bytes(row[row != -100].tolist()) for row in targets] == [b"I.\n", b"b\n"]


async def test_a_prompt_ends_where_an_answer_begins_and_threads_may_ask(tmp_path: Path) -> None:
    (tmp_path / "other.jinja").write_text("{{ messages[-1].content }}{{ '>' if add_generation_prompt }}")
    with Chats(FILES, ByteTokenizer()) as chats, Chats(FILES, ByteTokenizer(), template=tmp_path / "other.jinja") as other:
        found = await asyncio.gather(*(asyncio.to_thread(chats.prompt, chat(f"{n}")) for n in range(20)))
        assert [bytes(ids.tolist()) for ids in found] == [f"u:{n}\na:".encode() for n in range(20)]
        assert bytes(other.prompt(chat("a", "b", "c")).tolist()) == b"c>"
    chats.close()
    with pytest.raises(ValueError, match=r"the process of the chat template of the model \(.*\) was closed; open another"):
        chats.prompt(chat("a"))


@pytest.mark.parametrize(("known", "sentence"), [
    ([chat("a", "b"), []], r"^chat 2 has \[\] as 'messages', expected a list of messages, .*; correct it, or leave it out$"),
    ([chat("a")], "^chat 1 has no message of the role assistant"),
    ([[{"role": "me", "content": "a"}]], "^chat 1 message 1, has the role 'me', expected system, "),
    ([chat("a" * 30, "b")], "^chat 1 has no token of an answer within 20 tokens, .* choose a larger seq_len, or leave it out$"),
    ([], "there are no chats, expected at least one"),
])  # fmt: skip
def test_chats_that_cannot_be_learned_are_named_by_their_number(known: list[Any], sentence: str) -> None:
    with Chats(FILES, ByteTokenizer()) as chats, pytest.raises(ValueError, match=sentence):
        chats.batch(known, 20)


def test_a_model_without_a_template_and_a_prompt_that_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^the model has no chat template"):
        Chats({}, ByteTokenizer())
    with Chats(FILES, ByteTokenizer()) as chats:
        with pytest.raises(ValueError, match=r"^the chat has \[\] as 'messages'"):
            chats.prompt([])
        with pytest.raises(ValueError, match=r"^chat 1 cannot be rendered: the chat template of the model \(chat_"):
            chats.batch([[{"role": "user"} | {"content": None, "tool_calls": []}, *chat("a", "b")]], 20)
