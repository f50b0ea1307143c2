"""Text that arrives token by token equals the text of all tokens, whatever the tokenizer does with neighbors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from asynctile.layers.detokenizer import Detokenizer
from asynctile.layers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, Tokenizer, train_bpe

TEXT = "def forward(self, x):\n    return self.linear(x)  # žluťoučký kůň 😀 日本\n" * 20
WORDS = ["a", "b", "an", "!", " ", "  ", "é", "\n", "#", "don't", "\N{REPLACEMENT CHARACTER}"]
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def of_words(words: list[str], decoder: Any) -> HuggingFaceTokenizer:
    """Return a tokenizer of these words that decodes as `decoder` does; None puts spaces between words."""
    raw = tokenizers.Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, unk_token=words[0]))
    if decoder is not None:
        raw.decoder = decoder
    return HuggingFaceTokenizer(raw)


def with_special(tokenizer: HuggingFaceTokenizer) -> HuggingFaceTokenizer:
    raw = tokenizers.Tokenizer.from_str(tokenizer.to_json().decode())
    raw.add_special_tokens(["<|endoftext|>", "<a b é>"])
    return HuggingFaceTokenizer(raw)


MARKED = [f"{mark}{word}" for word in ("", "a", "b", "!", "é") for mark in ("", "\u2581", "\u2581\u2581")]
MARKED.remove("")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
#: Tokenizers whose later tokens never change earlier text.
TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "byte-level BPE": train_bpe([TEXT], 400),
    "byte-level BPE with special tokens": with_special(train_bpe([TEXT], 300)),
    "none": of_words(WORDS, None),
    "WordPiece": of_words([*WORDS, "##a", "##!", "##", "n't", "."], decoders.WordPiece(cleanup=True)),
    "Metaspace": of_words(MARKED, decoders.Metaspace(prepend_scheme="always")),
    "Metaspace, never": of_words(MARKED, decoders.Metaspace(prepend_scheme="never")),
    "suffix": of_words(["a</w>", "b</w>", "a", "</w>", "é</w>"], decoders.BPEDecoder(suffix="</w>")),
    "fused and stripped": of_words(MARKED, decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)])),
    "CTC": of_words(["<pad>", "a", "b", "|", "é"], decoders.CTC(pad_token="<pad>", word_delimiter_token="|", cleanup=False)),
}  # fmt: skip
FALLBACK = of_words([*BYTES, "\u2581a", "b", "\u2581"], decoders.Sequence([
    decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]))  # fmt: skip


def pushed(tokenizer: Tokenizer, ids: list[int], prompt: Sequence[int] = ()) -> list[str]:
    """Return the text that each token completes, and the rest at the end."""
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*(detokenizer.push(id) for id in ids), detokenizer.end()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_pieces_joined_are_the_text_of_all_tokens(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    some = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=12))
    ids = data.draw(st.lists(st.sampled_from(some), max_size=60))
    assert "".join(pushed(tokenizer, ids)) == tokenizer.decode(ids)
    prompt = ids[: data.draw(st.integers(0, len(ids)))]
    before = tokenizer.decode(prompt)
    if REPLACEMENT not in before[-1:]:
        assert before + "".join(pushed(tokenizer, ids[len(prompt) :], prompt)) == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), train_bpe([], 256), FALLBACK])
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[" ", REPLACEMENT])))
def test_a_character_comes_with_its_last_byte(tokenizer: Tokenizer, text: str) -> None:
    ids = list(text.encode()) if tokenizer is FALLBACK else tokenizer.encode(text).tolist()
    expected = [piece for character in text for piece in [*[""] * (len(character.encode()) - 1), character]]
    assert pushed(tokenizer, ids) == [*expected, ""]


def test_complete_characters_of_a_token_come_with_it() -> None:
    """This holds even if the token ends in the middle of a character."""
    tokenizer = TOKENIZERS["byte-level BPE with special tokens"]
    raw = tokenizers.Tokenizer(models.BPE({"a": 0, "\u00c3": 1, "\u00a9": 2, "a\u00c3": 3}, [("a", "\u00c3")]))
    raw.decoder = decoders.ByteLevel()
    assert pushed(HuggingFaceTokenizer(raw), [3, 2, 3]) == ["a", "\u00e9", "a", REPLACEMENT]
    special = tokenizer.special["<a b \u00e9>"]
    assert pushed(tokenizer, [special, special]) == ["<a b \u00e9>", "<a b \u00e9>", ""]


def test_an_unfinished_character_comes_once_at_the_end() -> None:
    for tokenizer in (ByteTokenizer(), train_bpe([], 256)):
        euro = tokenizer.encode("\u20ac").tolist()
        assert pushed(tokenizer, [*tokenizer.encode("a").tolist(), *euro[:2]]) == ["a", "", "", REPLACEMENT]


def test_bytes_that_never_become_a_character_are_not_kept_for_ever() -> None:
    found = pushed(ByteTokenizer(), [0xFF] * 1000)
    assert "".join(found) == REPLACEMENT * 1000
    assert len("".join(found[:100])) > 90


def test_long_texts_keep_few_tokens() -> None:
    """A token costs the same at any position, also among spaces, which show nothing by themselves."""
    for ids in ([0x20] * 300, [0x80] * 300, [0xF0, 0x9F] * 150, list(TEXT.encode())):
        counts: list[int] = []
        tokenizer = Counting(counts)
        assert "".join(pushed(tokenizer, ids)) == tokenizer.decode(ids)
        assert max(counts[:-1]) <= 17


class Counting(ByteTokenizer):
    """A tokenizer that records how many tokens it is asked to decode."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def decode(self, ids: Any) -> str:
        self.counts.append(len(ids))
        return super().decode(ids)


def test_a_row_beyond_the_vocabulary_has_no_text_and_ids_are_not_negative() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    assert [detokenizer.push(id) for id in (0xE2, 256, 0x82, 50_000, 0xAC)] == ["", "", "", "", "\u20ac"]
    with pytest.raises(ValueError, match="token id -1 is outside"):
        detokenizer.push(-1)
    assert detokenizer.push(0x41) == "A"


def test_text_already_given_out_is_not_taken_back() -> None:
    """When it decodes bytes together, this decoder turns all of them into replacement characters if one is wrong."""
    ids = [*b"ab", *"\u20ac".encode(), 0xFF, 256, 257]
    assert FALLBACK.decode(ids) == REPLACEMENT * 6 + " ab"
    assert pushed(FALLBACK, ids) == ["a", "b", "", "", "\u20ac", "", REPLACEMENT + " a", "b", ""]
    assert pushed(FALLBACK, ids[:6]) == ["a", "b", "", "", "\u20ac", "", REPLACEMENT]


def test_a_text_continues_its_prompt() -> None:
    """The text keeps the space that a decoder removes at the beginning of a text."""
    tokenizer = TOKENIZERS["Metaspace"]
    space_a = MARKED.index("\u2581a")
    assert pushed(tokenizer, [space_a, space_a]) == ["a", " a", ""]
    assert pushed(tokenizer, [space_a, space_a], [space_a]) == [" a", " a", ""]
    assert pushed(tokenizer, [space_a], [10**6, space_a, 10**6]) == [" a", ""]
    euros = list("\u20ac\u20ac\u20ac".encode())  # of their last bytes the first may be in the middle of one
    assert pushed(FALLBACK, [*euros[:3], 257], euros) == ["", "", "\u20ac", "b", ""]
    assert pushed(ByteTokenizer(), [0xAC, 0x41], [0xE2, 0x82]) == ["", REPLACEMENT + "A", ""]
