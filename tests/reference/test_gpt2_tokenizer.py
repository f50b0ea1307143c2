"""vocab.json with merges.txt against transformers' GPT2Tokenizer, and against GPT-2's published rules written out here.

Ids of any text are the same, also by the tokenizer.json that is written from these files. tests/layers/test_bpe_files.py tests
messages about damaged files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

transformers = pytest.importorskip("transformers")
regex = pytest.importorskip("regex")

from asynctile.layers.tokenizer import HuggingFaceTokenizer, Tokenizer, load_tokenizer  # noqa: E402
from tests.layers.gpt2_files import END, write_gpt2_files  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("default")]

#: Flags that make a token take the spaces beside it, or that let it match only between other words.
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": True}
ALONE = {"content": "alone", "lstrip": False, "rstrip": True, "single_word": True, "normalized": False, "special": True}
#: Files that may lie beside the two, by name.
BESIDE: dict[str, dict[str, dict[str, Any]]] = {
    "nothing": {},
    "names": {"special_tokens_map.json": {"bos_token": END, "eos_token": END, "unk_token": END}},
    "objects": {"special_tokens_map.json": {"eos_token": {"content": END, "lstrip": False, "rstrip": False,
                                                          "single_word": False, "normalized": True}, "mask_token": MASK},
                "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "pad_token": None, "add_bos_token": True}},
    "more tokens": {"special_tokens_map.json": {"pad_token": "<pad>", "additional_special_tokens": ["<a>", "<b>"]},
                    "added_tokens.json": {"<pad>": 301, "two words": 302, "<a>": 303},
                    "tokenizer_config.json": {"add_prefix_space": True}},
    "decoder": {"tokenizer_config.json": {"added_tokens_decoder": {"302": ALONE, "301": MASK | {"special": False},
                                                                   "300": {"content": END, "special": True}},
                                          "mask_token": "<mask>", "eos_token": "<eos>", "bos_token": None}},
}  # fmt: skip
WORDS = [
    END, "<mask>", "<pad>", "<a>", "<b>", "<eos>", "alone", "two words", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "'s", "'LL",
    "'re", "the", " the", "The", "1234", "\u010d", "\u4f60\u597d", "\U0001f600", "e\u0301", "\ufffd", "\0", "\u200b", "\ufeff",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=12).map("".join)


@pytest.fixture(scope="module", params=BESIDE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tokenizer")
    write_gpt2_files(path, 300, BESIDE[request.param])
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder), ())


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "GPT2TokenizerFast"])
def test_ids_are_those_of_transformers_for_any_text(folder: Path, ours: Tokenizer, kind: str) -> None:
    theirs = getattr(transformers, kind).from_pretrained(folder)
    assert ours.vocab_size == len(theirs)

    @settings(max_examples=200)
    @given(TEXTS)
    def holds(text: str) -> None:
        ids = ours.encode(text).tolist()
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)

    holds()
    assert set(theirs.all_special_tokens) <= ours.special.keys()


def test_the_written_json_gives_the_same_ids_in_transformers(ours: Tokenizer, tmp_path: Path) -> None:
    ours.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    again = load_tokenizer(str(tmp_path / "tokenizer.json"), ())
    assert again.fingerprint == ours.fingerprint

    @settings(max_examples=50)
    @given(TEXTS)
    def holds(text: str) -> None:
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)

    holds()


def test_a_checkpoint_with_both_kinds_of_files_gives_the_same_ids_in_transformers(
    folder: Path, ours: Tokenizer, tmp_path: Path
) -> None:
    """A run that began with the older files saves them together with the tokenizer.json made from them."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)

    @settings(max_examples=50)
    @given(TEXTS)
    def holds(text: str) -> None:
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)

    holds()


def test_ids_are_those_of_the_published_rules(tmp_path: Path) -> None:
    write_gpt2_files(tmp_path, 300, {})
    ours, by_rule = load_tokenizer(str(tmp_path / "vocab.json"), ()), published(tmp_path)
    assert isinstance(ours, HuggingFaceTokenizer)

    # Only characters that this Python knows: Unicode versions differ on what is a letter, and so do libraries.
    known = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co"]), max_size=30)

    @settings(max_examples=300)
    @given(known | TEXTS.filter(lambda text: END not in text))
    def holds(text: str) -> None:
        assert ours.encode(text).tolist() == by_rule(text)

    holds()


def published(folder: Path) -> Callable[[str], list[int]]:
    """Return GPT-2's encoder.

    It cuts words by a pattern, turns bytes into characters, and merges pairs in the order of training until none is left.
    """
    vocab: dict[str, int] = json.loads((folder / "vocab.json").read_text())
    pairs = [tuple(line.split()) for line in (folder / "merges.txt").read_text().split("\n")[1:-1]]
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = dict(zip(printable, map(chr, printable), strict=True)) | {byte: chr(256 + n) for n, byte in enumerate(others)}

    def encode(text: str) -> list[int]:
        return [vocab[part] for word in words.findall(text) for part in merged([characters[byte] for byte in word.encode()])]

    def merged(parts: list[str]) -> list[str]:
        while len(parts) > 1:
            first = min(pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
            if first not in ranks:
                break
            found, at = [], 0
            while at < len(parts):
                is_pair = tuple(parts[at : at + 2]) == first
                found.append("".join(parts[at : at + 1 + is_pair]))
                at += 1 + is_pair
            parts = found
        return parts

    return encode
