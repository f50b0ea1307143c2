"""The purpose of a tokenizer's special tokens: which ones begin and end a text, and the files that tell other programs.

Also covers whether a model has these tokens, what separates documents, what stands around a prompt, and where a text ends.
companions.py lists the files of a model, tokenizer.py makes tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.companions import GENERATION, TOKENIZER, TOKENIZER_CONFIG, Companions
from asynctile.layers.config import Config
from asynctile.layers.tokenizer import Tokenizer
from asynctile.storage.folder import encode_json
from asynctile.storage.input import parse_json, shown

#: Names of special tokens by purpose. A tokenizer.json only tells which tokens are special. Their names tell the purpose.
NAMES = {"bos": ("<|endoftext|>", "<|begin_of_text|>", "<s>"), "eos": ("<|endoftext|>", "<|end_of_text|>", "</s>"),
         "unk": ("<unk>", "[UNK]")}  # fmt: skip


def of_tokenizer(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """Return the companion files of a tokenizer that has none, for a model with sequences of up to `longest` tokens."""
    config = {
        # Not GPT2Tokenizer: that class adds <|endoftext|>, and splits text before it looks up bytes.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        **{f"{purpose}_token": name for purpose, name in _named(tokenizer).items()},
    }
    return {TOKENIZER: tokenizer.to_json(), TOKENIZER_CONFIG: encode_json(config)}


def token_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of the tokens that begin and end a text, for a new model's config; None for a token that is missing."""
    named = _named(tokenizer)
    return {f"{purpose}_token_id": tokenizer.special.get(named.get(purpose, "")) for purpose in ("bos", "eos")}


def separator(tokenizer: Tokenizer) -> NDArray[Any]:
    """Return the ids (n,) between two documents: the token that ends a text, or those of a blank line if there is none."""
    end = _named(tokenizer).get("eos")
    blank = tokenizer.encode("\n\n")
    return blank if end is None else np.asarray([tokenizer.special[end]], blank.dtype)


def prompt_ids(tokenizer: Tokenizer, text: str) -> NDArray[np.int64]:
    """Return the ids (T,) of a prompt, as transformers gives them to a model.

    A tokenizer.json may put tokens around a text, such as LLaMA's first one. A tokenizer without `encode_prompt` does not.
    """
    encode = getattr(tokenizer, "encode_prompt", tokenizer.encode)
    return np.asarray(encode(text), np.int64)


def end_ids(files: Companions, config: Config) -> list[int]:
    """Return the tokens that end a text, as generation_config.json says, otherwise config.json; those of the vocabulary alone.

    files: a model's companions. ValueError for a generation_config.json that is damaged or says something else.
    """
    values = config.to_hf()
    if GENERATION in files:
        try:
            found = parse_json(files[GENERATION])
        except ValueError as error:
            raise ValueError(f"{GENERATION} is damaged: it is not JSON ({error}); copy it again, or remove it") from error
        values |= found if isinstance(found, dict) else {}
    said = values.get("eos_token_id")
    ids = said if isinstance(said, list) else [] if said is None else [said]
    if not all(type(id) is int and id >= 0 for id in ids):
        raise ValueError(f"{GENERATION} says eos_token_id {shown(said)}, expected a token id, several, or null")
    return [id for id in ids if id < config.vocab_size]


def check_fit(tokenizer: Tokenizer, vocab_size: int, model: str) -> None:
    """Raise ValueError, naming `model`, if its `vocab_size` is too small for the tokenizer; TypeError if it is not a tokenizer.

    The model may lack special tokens, which are not text: some are added to a tokenizer and never to the model. It may also
    have more tokens than the tokenizer, because many models round the number up.
    """
    if isinstance(tokenizer, type) or not isinstance(getattr(tokenizer, "vocab_size", None), int):
        raise TypeError(f"tokenizer is {shown(tokenizer)}, expected one such as ByteTokenizer() or open_tokenizer(folder)")
    count, special = tokenizer.vocab_size, set(tokenizer.special.values())
    while count - 1 in special:
        count -= 1
    if count > vocab_size:
        raise ValueError(f"the tokenizer has {count} tokens, but {model} has only {vocab_size}; use the tokenizer that the "
                         "model was trained with")


def _named(tokenizer: Tokenizer) -> dict[str, str]:
    found = {purpose: [name for name in names if name in tokenizer.special] for purpose, names in NAMES.items()}
    return {purpose: names[0] for purpose, names in found.items() if names}
