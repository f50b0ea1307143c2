"""The special tokens of a configuration: their checks, and their form in config.json. config.py lists them as TOKENS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from asynctile.layers.config import TOKENS, Config
from asynctile.storage.input import shown

C = TypeVar("C", bound=Config)
#: The only one that may be several ids.
_EOS = "eos_token_id"


def check_special(config: Config) -> None:
    """Raise ValueError for a special token that is no id. Several ids that end a text become a tuple."""
    if isinstance(getattr(config, _EOS), list):
        object.__setattr__(config, _EOS, tuple(getattr(config, _EOS)))
    for name in TOKENS:
        value = getattr(config, name)
        for token in value if name == _EOS and isinstance(value, tuple) else (value,):
            if token is not None and (isinstance(token, bool) or not isinstance(token, int) or token < 0):
                raise ValueError(f"{name} is {shown(value)}, expected a token id of at least 0, or None for no such token")


def special_to_hf(config: Config) -> dict[str, Any]:
    """Return the special tokens as config.json has them."""
    values = {name: getattr(config, name) for name in TOKENS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def special_within(config: C) -> C:
    """Return the configuration without special tokens beyond its vocabulary.

    transformers writes the published ids even for a smaller vocabulary, and warns of them whenever it opens such a model.
    """
    return replace(config, **{name: _within(getattr(config, name), config.vocab_size) for name in TOKENS})


def _within(tokens: Any, vocab_size: int) -> Any:
    """Return a token id, or several, without ids that the model does not have; None if none is left."""
    if isinstance(tokens, tuple):
        return tuple(token for token in tokens if token < vocab_size) or None
    return tokens if tokens is None or tokens < vocab_size else None
