"""Chats against transformers: ids, masks of answers and texts, for 200 chats by chance and templates with {% generation %}.

Also the loss of a batch of chats on a small random model, against transformers' loss with labels of -100.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from asynctile import Engine  # noqa: E402
from asynctile.layers import LlamaConfig, Model  # noqa: E402
from asynctile.layers.chat_format import ChatFormat, read_chat_files  # noqa: E402
from asynctile.layers.chat_renderer import Renderer  # noqa: E402
from asynctile.layers.chats import ChatSource, encode_answers  # noqa: E402
from asynctile.layers.data_source import open_source  # noqa: E402
from asynctile.layers.example_batches import ExampleBatches  # noqa: E402
from asynctile.layers.examples import Examples  # noqa: E402
from asynctile.layers.tokenizer import open_tokenizer  # noqa: E402
from tests.layers.chats import STYLES, chat, chats_by_chance, template, write_lines, write_tokenizer  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

CONFIG = LlamaConfig(n_layer=2, hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
                     vocab_size=340, block_size=256)  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_200_chats_have_the_ids_and_masks_of_transformers(style: str, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "model", style, template(style, is_marked=True))
    theirs, ours = transformers.PreTrainedTokenizerFast.from_pretrained(folder), open_tokenizer(folder)
    format, answered = ChatFormat.of(read_chat_files(folder), "m"), 0
    with Renderer(format.template, format.names(ours), "m") as renderer:
        for messages in chats_by_chance(200, seed=7):
            expected = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            example = encode_answers(ours, *renderer.answers(messages))
            assert example.ids.tolist() == expected["input_ids"]
            assert example.answers.tolist() == list(map(bool, expected["assistant_masks"]))
            assert renderer.prompt(messages) == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            answered += bool(example.answers.any())
    assert answered == 200


def test_tools_thoughts_and_missing_contents_reach_a_template_as_in_transformers(tmp_path: Path) -> None:
    source = ("{{ tools | tojson }}{{ documents }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
              "{{ m | tojson }}{% endgeneration %}{% else %}{{ m | tojson(indent=2) }}{% endif %}{% endfor %}")  # fmt: skip
    folder = write_tokenizer(tmp_path / "model", "ChatML", source)
    theirs, tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder), open_tokenizer(folder)
    tools = [{"type": "function", "function": {"name": "move", "parameters": {"<\u017e>": [1.5, None]}}}]
    thoughts = ({"reasoning": "a"}, {"thinking": "b"}, {"reasoning_content": "c", "thinking": "d"}, {"reasoning": None})
    with Renderer(source, {}, "m") as renderer:
        for thought in thoughts:
            messages = [*chat("go"), {"role": "assistant", "content": None, "tool_calls": [{"id": 1}], **thought}]
            expected = theirs.apply_chat_template(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
            example = encode_answers(tokenizer, *renderer.answers(messages, tools))
            assert example.ids.tolist() == expected["input_ids"]
            assert example.answers.tolist() == list(map(bool, expected["assistant_masks"]))


@pytest.mark.parametrize("style", STYLES)
def test_answers_found_by_difference_are_those_that_a_mark_finds(style: str, tmp_path: Path) -> None:
    """Up to what the template writes behind an answer, which a mark may leave out: a new line of ChatML."""
    folder = write_tokenizer(tmp_path / "model", style, "")
    tokenizer = open_tokenizer(folder)
    names = ChatFormat.of(read_chat_files(folder), "m").names(tokenizer)
    with (Renderer(template(style, is_marked=True), names, "m") as marked,
          Renderer(template(style, is_marked=False), names, "m") as plain):  # fmt: skip
        for messages in chats_by_chance(100, seed=8):
            (text, spans), (other, found) = marked.answers(messages), plain.answers(messages)
            assert text == other and len(spans) == len(found)
            behind = 1 if style == "ChatML" else 0
            assert [(begin, end + behind) for begin, end in spans] == found


async def test_the_loss_of_a_batch_is_that_of_transformers(tmp_path: Path) -> None:
    source = template("Llama 3", is_marked=True)
    folder = write_tokenizer(tmp_path / "tokenizer", "Llama 3", source)
    tokenizer, format = open_tokenizer(folder), ChatFormat.of(read_chat_files(folder), "m")
    lines = [{"messages": chat(*(f"{n} {word}" for word in ("tile?", "The tile", "moved?", "the device")[: 2 + 2 * (n % 2)]))}
             for n in range(8)]  # fmt: skip
    found = open_source(write_lines(tmp_path / "a.jsonl", lines))
    assert isinstance(found, ChatSource)
    examples = found.examples(tokenizer, format, 200, tmp_path / "tokens")
    batches = ExampleBatches(Examples(examples, 0, 8), 2, 200, seed=1)
    assert batches.of_pass == 1
    batch = batches.batch(0)
    async with Engine("cpu") as engine:
        model = await Model.create(engine, CONFIG, seed=3)
        await model.save_pretrained(tmp_path / "model")
        ours = await model.loss(*batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    total = count = 0.0
    for index in range(8):
        ids, answers = examples[index]
        labels = np.where(answers, ids.astype(np.int64), -100)
        labels[0] = -100
        with torch.no_grad():
            loss = theirs(torch.from_numpy(ids[None].astype(np.int64)), labels=torch.from_numpy(labels[None])).loss
        total, count = total + float(loss) * answers[1:].sum(), count + answers[1:].sum()
    assert ours == pytest.approx(total / count, abs=1e-5)
