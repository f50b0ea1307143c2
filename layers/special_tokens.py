"""What a tokenizer's tokens are for: which begin and end a text, the files that say so to other programs.

Covers whether a model has them too, and what stands between documents. The files of a model are companions.py, what a token
is tokenizer.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asynctile.layers.companions import TOKENIZER, TOKENIZER_CONFIG
from asynctile.layers.tokenizer import Tokenizer
from asynctile.storage.folder import encode_json
from asynctile.storage.input import shown

#: What a token is for is said by its name alone: a tokenizer.json only tells which are no text.
NAMES = {"bos": ("<|endoftext|>", "<|begin_of_text|>", "<s>"), "eos": ("<|endoftext|>", "<|end_of_text|>", "</s>"),
         "unk": ("<unk>", "[UNK]")}  # fmt: skip


def of_tokenizer(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """The files of a tokenizer that has none of its own, for a model that takes sequences of `longest` tokens."""
    config = {
        # By its name, and not GPT2Tokenizer, which adds <|endoftext|> and cuts text before bytes are looked up.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        **{f"{purpose}_token": name for purpose, name in _named(tokenizer).items()},
    }
    return {TOKENIZER: tokenizer.to_json(), TOKENIZER_CONFIG: encode_json(config)}


def token_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Of a new model's config: which tokens of the tokenizer begin and end a text, None where it has none."""
    named = _named(tokenizer)
    return {f"{purpose}_token_id": tokenizer.special.get(named.get(purpose, "")) for purpose in ("bos", "eos")}


def separator(tokenizer: Tokenizer) -> NDArray[Any]:
    """Ids (n,) that stand between two documents: the token that ends a text, of a tokenizer that has none a blank line."""
    end = _named(tokenizer).get("eos")
    blank = tokenizer.encode("\n\n")
    return blank if end is None else np.asarray([tokenizer.special[end]], blank.dtype)


def check_fit(tokenizer: Tokenizer, vocab_size: int, model: str) -> None:
    """ValueError, naming `model`, if its `vocab_size` tokens are too few for the texts of a tokenizer; TypeError if it is none.

    It may have fewer than special tokens, which are no text: some are added to a tokenizer and to no model. It may have more
    than the tokenizer, since many models round them up.
    """
    if isinstance(tokenizer, type) or not isinstance(getattr(tokenizer, "vocab_size", None), int):
        raise TypeError(f"tokenizer is {shown(tokenizer)}, expected one such as ByteTokenizer() or open_tokenizer(folder)")
    count, special = tokenizer.vocab_size, set(tokenizer.special.values())
    while count - 1 in special:
        count -= 1
    if count > vocab_size:
        raise ValueError(f"the tokenizer has {count} tokens and {model} only {vocab_size}; use the tokenizer that the "
                         "model was trained with")


def _named(tokenizer: Tokenizer) -> dict[str, str]:
    found = {purpose: [name for name in names if name in tokenizer.special] for purpose, names in NAMES.items()}
    return {purpose: names[0] for purpose, names in found.items() if names}
