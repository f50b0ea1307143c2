"""The match between the tokens of a model and of a tokenizer. Tests of companions cover the writing of special tokens."""

from __future__ import annotations

import pytest
import tokenizers

from asynctile.layers.special_tokens import check_fit
from asynctile.layers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, train_bpe


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
