"""GPT-2's tokenizer in its original files: vocab.json and merges.txt, plus files that give some tokens a purpose.

Covers `tokenizer_json`, which converts them to the single file that newer programs use. The rules follow what transformers does
with these files. tokenizer.py reads the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from asynctile.layers.companions import TOKENIZER_CONFIG
from asynctile.storage.input import parse_json, shown

__all__ = ["ADDED", "MERGES", "SPECIAL", "VOCAB", "tokenizer_json"]

VOCAB, MERGES = "vocab.json", "merges.txt"
SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"
#: The token that GPT-2 uses for each of _DEFAULTS that no file sets.
_END, _DEFAULTS = "<|endoftext|>", {"unk_token", "bos_token", "eos_token"}
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_MOST_IDS = 1 << 31

#: a token as in tokenizer.json: "content", the flags, and "id"
_Added = dict[str, Any]


def tokenizer_json(files: Mapping[str, bytes]) -> bytes:
    """Return the tokenizer.json that is equivalent to `files`: content by name, VOCAB and MERGES and any of the others.

    Every text gets the same ids as from transformers' GPT2Tokenizer, with one exception: <|endoftext|> is a token only if a
    file names it. ValueError, naming the file, if one is damaged or belongs to a tokenizer with other rules.
    """
    vocab, config = _vocab(files[VOCAB]), _object(files, TOKENIZER_CONFIG)
    if config.get("tokenizer_class") not in _CLASSES:
        raise ValueError(f"{TOKENIZER_CONFIG} says tokenizer_class {shown(config['tokenizer_class'])}, expected GPT2Tokenizer: "
                         "other classes use rules that these files do not contain; save the tokenizer as a tokenizer.json")
    if config.get("split_special_tokens"):
        raise ValueError(f"{TOKENIZER_CONFIG} sets split_special_tokens, which is not supported; save the tokenizer as a "
                         "tokenizer.json")
    prefix = config.get("add_prefix_space", False)
    if not isinstance(prefix, bool):
        raise ValueError(f"{TOKENIZER_CONFIG} says add_prefix_space {shown(prefix)}, expected true or false")
    level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    return json.dumps({
        "version": "1.0",
        "added_tokens": _with_ids(_added(config, files, vocab), vocab),
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": list(_merges(files[MERGES]))},
    }, ensure_ascii=False).encode()  # fmt: skip


def _vocab(content: bytes) -> dict[str, int]:
    vocab = _parsed(content, VOCAB)
    for token, id in vocab.items():
        if type(id) is not int or not 0 <= id < _MOST_IDS:
            raise ValueError(f"{VOCAB} gives the token {shown(token)} the id {shown(id)}, expected an int from 0 to "
                             f"{_MOST_IDS - 1}")
    if len(set(vocab.values())) < len(vocab):
        raise ValueError(f"{VOCAB} gives two tokens the same id")
    return vocab


def _merges(content: bytes) -> Iterator[str]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{MERGES} is not valid UTF-8: the first invalid byte is at offset {error.start}") from error
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: tokens may contain its other line ends
        merge = line.removesuffix("\r")
        if merge and not merge.startswith("#version"):
            if merge.count(" ") != 1 or merge != merge.strip(" "):
                raise ValueError(f"{MERGES}, line {number}, is {shown(merge)}, expected two tokens with a space between them")
            yield merge


def _added(config: dict[str, Any], files: Mapping[str, bytes], vocab: Mapping[str, int]) -> list[_Added]:
    """Return the tokens that are matched before all others, in the order in which they get ids.

    A token has "id" if a file gives it one.
    """
    decoder = config.get("added_tokens_decoder")
    says = config if decoder is not None else config | _object(files, SPECIAL)
    named = [_token(value, name, is_special=True) for name, value in _purposes(says)]
    if _END in vocab and _DEFAULTS - says.keys():
        named.append(_token(_END, SPECIAL, is_special=True))
    special = {token["content"] for token in named}
    if decoder is None:
        numbered = [(id, _token(token, ADDED, token in special)) for token, id in _object(files, ADDED).items()]
    elif isinstance(decoder, dict):
        numbered = [(_number(id), _token(value, "added_tokens_decoder")) for id, value in decoder.items()]
    else:
        raise ValueError(f"{TOKENIZER_CONFIG} has the added_tokens_decoder {shown(decoder)}, expected tokens by id")
    for id, token in numbered:
        if type(id) is not int:
            raise ValueError(f"the added token {shown(token['content'])} has the id {shown(id)}, expected an int; "
                             "repair the tokenizer's files")
        token["special"] |= token["content"] in special
    found = {token["content"]: token | {"id": id} for id, token in sorted(numbered, key=lambda pair: pair[0])}
    return [*found.values(), *{token["content"]: token for token in named if token["content"] not in found}.values()]


def _purposes(says: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, token) for every purpose that the files assign to a token."""
    for name, value in says.items():
        if name in _LISTS:
            tokens = list(value.values()) if isinstance(value, dict) else value or []
            if not isinstance(tokens, list):
                raise ValueError(f"{name} is {shown(value)}, expected a list")
            yield from ((name, token) for token in tokens)
        elif name.endswith("_token") and not isinstance(value, bool | None):  # add_bos_token is a switch, not a token
            yield name, value


def _token(value: Any, name: str, is_special: bool = False) -> _Added:
    """Return a token that a file gives either as its text or as an object with its text and flags."""
    given = {"content": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("content"), str) or not given["content"]:
        raise ValueError(f"the {name} is {shown(value)}, expected a token")
    special = given.get("special", False) is True or is_special
    flags = dict.fromkeys(_FLAGS, False) | {"normalized": not special} | given | {"special": special}
    if not all(isinstance(flags[flag], bool) for flag in _FLAGS):
        raise ValueError(f"the {name} is {shown(value)}, expected true or false for each of {', '.join(_FLAGS)}")
    return {"content": given["content"], **{flag: flags[flag] for flag in _FLAGS}}


def _with_ids(tokens: list[_Added], vocab: Mapping[str, int]) -> list[_Added]:
    """Return each token with its id: the one in the vocabulary, otherwise the next after all others."""
    taken, found, behind = set(vocab.values()), [], len(vocab)
    for token in tokens:
        is_new = token["content"] not in vocab
        id = behind if is_new else vocab[token["content"]]
        if is_new and id in taken:
            raise ValueError(f"{VOCAB} has {len(vocab)} tokens and uses id {id}, which the added token "
                             f"{shown(token['content'])} needs; ids must have no gap; save the tokenizer as a tokenizer.json")
        if token.get("id", id) != id:
            raise ValueError(f"the added token {shown(token['content'])} has the id {shown(token['id'])}, expected {id} after "
                             f"the {len(vocab)} tokens of {VOCAB}; save the tokenizer as a tokenizer.json")
        behind += is_new
        found.append(token | {"id": id})
    return sorted(found, key=lambda token: int(token["id"]))


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_IDS)) else text


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    return _parsed(files[name], name) if name in files else {}


def _parsed(content: bytes, name: str) -> dict[str, Any]:
    try:
        found = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} contains {shown(found)}, expected a JSON object")
    return found
