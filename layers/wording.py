"""The text that each token shows, and where it ends: `Wording`, which joins detokenizer.py and stopping.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from asynctile.layers.detokenizer import Detokenizer
from asynctile.layers.stopping import Stopping
from asynctile.layers.tokenizer import Tokenizer


class Wording:
    """The wording of one text after a prompt (T,). stopping: decides where it ends.

    tokenizer: None if the text is not read, so that only ids can end it.
    """

    def __init__(self, stopping: Stopping, tokenizer: Tokenizer | None, prompt: Sequence[int] | NDArray[Any]) -> None:
        self._stopping = stopping
        self._decoder = None if tokenizer is None else Detokenizer(tokenizer, prompt)

    @property
    def is_ended(self) -> bool:
        """Whether a token, or a string that a token completed, has ended the text."""
        return self._stopping.found is not None

    def push(self, token: int) -> str:
        """Return the text that can be shown now. A token that ends the text is not part of it."""
        ended = self._stopping.is_end(token)
        if self._decoder is None:
            return ""
        return self.end() if ended else self._stopping.push(self._decoder.push(token))

    def end(self) -> str:
        """Return the text that was held back, once no more tokens come."""
        if self._decoder is None:
            return ""
        return self._stopping.push(self._decoder.end()) + self._stopping.end()
