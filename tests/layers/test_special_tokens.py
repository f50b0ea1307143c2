"""The match between the tokens of a model and of a tokenizer, the tokens around a prompt, and those that end a text.

Tests of companions cover the writing of special tokens.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers

from asynctile.layers import GPT2Config
from asynctile.layers.detokenizer import Detokenizer
from asynctile.layers.special_tokens import check_fit, end_ids, prompt_ids
from asynctile.layers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, parse_tokenizer, train_bpe
from tests.layers.llama_files import byte_level, sentencepiece


def test_a_model_may_have_more_tokens_than_the_tokenizer_but_not_fewer() -> None:
    check_fit(ByteTokenizer(), 256, "the model")
    check_fit(ByteTokenizer(), 320, "the model")
    with pytest.raises(ValueError, match=r"^the tokenizer has 256 tokens, but the model of runs/one has only 255; use"):
        check_fit(ByteTokenizer(), 255, "the model of runs/one")


def test_special_tokens_after_all_others_may_exist_in_the_tokenizer_alone() -> None:
    raw = tokenizers.Tokenizer.from_str(train_bpe([], 256).to_json().decode())
    raw.add_special_tokens(["<pad>", "<mask>"])
    check_fit(HuggingFaceTokenizer(raw), 256, "the model")
    with pytest.raises(ValueError, match="256 tokens"):
        check_fit(HuggingFaceTokenizer(raw), 255, "the model")
    raw.add_tokens(["more text"])
    with pytest.raises(ValueError, match="259 tokens"):
        check_fit(HuggingFaceTokenizer(raw), 256, "the model")


def test_a_prompt_has_the_tokens_that_its_tokenizer_puts_around_a_text() -> None:
    raw = tokenizers.Tokenizer.from_str(train_bpe([], 256).to_json().decode())
    raw.add_special_tokens(["<|begin_of_text|>"])
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 256)])  # fmt: skip
    tokenizer, plain = HuggingFaceTokenizer(raw), train_bpe([], 256).encode("ab").tolist()
    assert prompt_ids(tokenizer, "ab").tolist() == [256, *plain] == raw.encode("ab").ids
    assert tokenizer.encode("ab").tolist() == plain
    assert prompt_ids(ByteTokenizer(), "ab").tolist() == [97, 98]


@pytest.mark.parametrize(("said", "own", "expected"), [
    ({"eos_token_id": [7, 3, 900]}, 2, [7, 3]),
    ({"eos_token_id": 7}, 2, [7]),
    ({"eos_token_id": None}, 2, []),
    ({"max_new_tokens": 9}, 2, [2]),
    (None, (2, 5), [2, 5]),
    (None, None, []),
])  # fmt: skip
def test_a_text_ends_at_the_tokens_of_the_generation_config_or_else_of_the_model(
    said: Any, own: Any, expected: list[int]
) -> None:
    config = GPT2Config(vocab_size=50, eos_token_id=own)
    files = {} if said is None else {"generation_config.json": json.dumps(said).encode()}
    assert end_ids(files, config) == expected


@pytest.mark.parametrize(("content", "sentence"), [
    ('{"eos_token_id": ["x"]}', "eos_token_id ['x'], expected a token id, several, or null"),
    ('{"eos_token_id": true}', "eos_token_id True, expected"),
    ('{"eos_token_id": [-1]}', r"eos_token_id [-1], expected"),
    ("{", "generation_config.json is damaged: it is not JSON"),
])  # fmt: skip
def test_a_damaged_generation_config_is_named(content: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"generation_config\.json") as caught:
        end_ids({"generation_config.json": content.encode()}, GPT2Config())
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [sentencepiece(), byte_level("<|begin_of_text|>", "<|eot_id|>"), byte_level(None, "<|im_end|>")],
    ids=["LLaMA 2 and Mistral", "LLaMA 3", "Qwen"],
)
def test_tokenizers_of_other_families_give_their_ids_and_their_text_piece_by_piece(content: bytes) -> None:
    raw, tokenizer = tokenizers.Tokenizer.from_buffer(content), parse_tokenizer(content, "tokenizer.json")
    text = "The tile's  caf\u00e9 \u4f60\u597d \U0001f600\n\n12345 bytes"
    assert prompt_ids(tokenizer, text).tolist() == raw.encode(text).ids
    ids = tokenizer.encode(text).tolist()
    assert tokenizer.decode(ids) == text
    prompt = prompt_ids(tokenizer, "Once upon").tolist()
    detokenizer = Detokenizer(tokenizer, prompt)
    joined = "".join(map(detokenizer.push, ids)) + detokenizer.end()
    assert tokenizer.decode(prompt) + joined == tokenizer.decode([*prompt, *ids])
    assert joined.strip() == text
