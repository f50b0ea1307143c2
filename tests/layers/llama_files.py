"""Small tokenizers in the forms that LLaMA, Mistral and Qwen have, as the content of their tokenizer.json."""

from __future__ import annotations

import json
from functools import cache

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = (
    "The tile moved from the device to the disk, and that's 1234 bytes.\n\n  \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148\n"
) * 40
#: How LLaMA 3 and Qwen cut a text before they look up bytes.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def sentencepiece() -> bytes:
    """Return a tokenizer like that of LLaMA 2 and Mistral: spaces become U+2581, other characters fall back to bytes."""
    raw = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=tokens, show_progress=False)
    raw.train_from_iterator([TEXT.replace("\u017elu\u0165", "")], trainer)
    content = json.loads(raw.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in special]
    return _begun(tokenizers.Tokenizer.from_str(json.dumps(content)), "<s>")


@cache
def byte_level(begin: str | None, *special: str) -> bytes:
    """Return a tokenizer like that of LLaMA 3 and Qwen: bytes in pieces of PATTERN, with special tokens behind them.

    begin: the special token that begins every text; None: there is none.
    """
    raw = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False))
    raw.add_special_tokens([*([] if begin is None else [begin]), *special])
    return raw.to_str().encode() if begin is None else _begun(raw, begin)


def _begun(raw: tokenizers.Tokenizer, begin: str) -> bytes:
    """Return the tokenizer.json of a tokenizer that puts `begin` before every text."""
    raw.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, raw.token_to_id(begin))])
    content: str = raw.to_str()
    return content.encode()
