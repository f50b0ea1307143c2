"""What each token of a text shows, and where it ends: `Wording`, detokenizer.py and stopping.py together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from asynctile.layers.detokenizer import Detokenizer
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer


class Wording:
    """Of one text behind a prompt (T,). tokenizer: None where tokens are not to be read, and only ids can end it."""

    def __init__(self, stopping: Stopping, tokenizer: Tokenizer | None, prompt: Sequence[int] | NDArray[Any]) -> None:
        self._stopping = stopping
        self._decoder = None if tokenizer is None else Detokenizer(tokenizer, prompt)

    @property
    def is_ended(self) -> bool:
        """Whether a token, or a string that one completed, ended the text."""
        return self._stopping.found is not None

    def push(self, token: int) -> str:
        """The text that can be shown now. A token that ends it is no part of it."""
        ended = self._stopping.is_end(token)
        if self._decoder is None:
            return ""
        return self.end() if ended else self._stopping.push(self._decoder.push(token))

    def end(self) -> str:
        """What was held back, where no more tokens come."""
        if self._decoder is None:
            return ""
        return self._stopping.push(self._decoder.end()) + self._stopping.end()
